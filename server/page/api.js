// The server's routes, below the address that the page came from.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Set by main.js: the key that requests carry, and how a new one is asked for ("" if there will be none).
export const access = { key: "", ask: async () => "" };

async function errorOf(response) {
  let message = `status ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not every failure has a body of this shape.
  }
  return new ApiError(response.status, message);
}

// A response of the 200s. After a 401 a key is asked for, as often as it is wrong.
export async function request(path, options = {}) {
  for (;;) {
    const key = access.key;
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    const response = await fetch(path, { cache: "no-store", ...options, headers });
    if (response.ok) return response;
    const error = await errorOf(response);
    // Another request may have got a key meanwhile.
    if (response.status !== 401 || !(access.key !== key || (await access.ask()))) throw error;
  }
}

// Without a question for a key: null where the route is closed or switched off.
export async function quiet(path) {
  try {
    const response = await fetch(path, { cache: "no-store", headers: access.key ? { Authorization: `Bearer ${access.key}` } : {} });
    return response.ok ? response : null;
  } catch {
    return null;
  }
}

// The data of server-sent events, up to [DONE]; throws if they end without it.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection ended before the answer did");
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const line = block.split("\n").find((l) => l.startsWith("data: "));
      if (!line) continue;
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice(6));
    }
  }
}
