"""lathe chat on a pseudo-terminal: chat_terminal.py PROGRAM MODEL. Line editing, history, Ctrl-C at
the prompt and in an answer, Ctrl-D. Says what is missing and exits 1, or says nothing."""

import os
import pty
import select
import signal
import sys
import termios
import time

program, model = sys.argv[1], sys.argv[2]
KILN = b"A kiln is a furnace for firing or burning"


class Terminal:
    def __init__(self, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.environ.pop("NO_COLOR", None)
            os.execv(program, [program, *arguments])
        self.seen = b""

    def wait_for(self, text, seconds=120):
        """Reads until `text` comes; what came before it is dropped."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], 0.1)
            if ready:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b""
                if not data:
                    sys.exit(f"the program ended; expected {text!r}, got {self.seen[-500:]!r}")
                self.seen += data
            elif time.monotonic() > end:
                sys.exit(f"expected {text!r}, got {self.seen[-500:]!r}")
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    def send(self, text):
        os.write(self.fd, text)

    def status(self, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if select.select([self.fd], [], [], 0.1)[0]:
                    os.read(self.fd, 65536)
            except OSError:
                pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        sys.exit("the program did not end")


t = Terminal("chat", "-m", model, "--no-think", "--greedy")
t.wait_for(b"> ")
# A slip that is corrected by editing keys: backspace, then the missing letter at the line's front.
t.send(b"hat is a kilnn\x7f?\x01W\r")
t.wait_for(KILN)
t.wait_for(b"> ")
t.send(b"nothing of this\x03")
t.wait_for(b"> ")
t.send(b"/reset\r")
t.wait_for(b"> ")
t.send(b"\x1b[A\x1b[A\r")  # the question again, from the history
t.wait_for(KILN)
t.wait_for(b"> ")
t.send(b"/stats\r")
t.wait_for(b"prompt 18 tokens")
t.wait_for(b"> ")
t.send(b"\x04")
code = t.status()
if code != 0:
    sys.exit(f"Ctrl-D: status {code}")

# Ctrl-D typed while the model is loaded, and while it answers, ends the chat at the next prompt.
t = Terminal("chat", "-m", model, "--no-think", "--greedy")
t.send(b"\x04")
code = t.status()
if code != 0:
    sys.exit(f"Ctrl-D typed ahead: status {code}")
t = Terminal("chat", "-m", model, "--no-think", "--greedy")
t.wait_for(b"> ")
t.send(b"What is a kiln?\r")
t.wait_for(b"A kiln")
t.send(b"\x04")
code = t.status()
if code != 0:
    sys.exit(f"Ctrl-D in an answer: status {code}")

# SIGTERM at the prompt ends the program and gives the terminal back as it was.
t = Terminal("chat", "-m", model)
before = termios.tcgetattr(t.fd)
t.wait_for(b"> ")
t.send(b"abc")
t.wait_for(b"abc")
if termios.tcgetattr(t.fd)[3] & termios.ICANON:
    sys.exit("the editor does not have the terminal")
os.kill(t.pid, signal.SIGTERM)
_, status = os.waitpid(t.pid, 0)
if os.waitstatus_to_exitcode(status) != -signal.SIGTERM:
    sys.exit(f"SIGTERM: status {status}")
if termios.tcgetattr(t.fd)[:4] != before[:4]:
    sys.exit(f"SIGTERM leaves the terminal as {termios.tcgetattr(t.fd)[:4]}, it was {before[:4]}")

t = Terminal("chat", "-m", model, "--no-think", "--ignore-eos", "--seed", "1")
t.wait_for(b"> ")
t.send(b"Tell me a story.\r")
t.wait_for(b".")
time.sleep(0.3)
t.send(b"\x03")
t.wait_for(b"[stopped]", 60)
t.wait_for(b"> ")
t.send(b"/think on\r")
t.wait_for(b"> ")
t.send(b"What is 17 + 25?\r")
t.wait_for(b"\x1b[2m")  # reasoning is dimmed
t.wait_for(b"\x1b[0m")
t.send(b"\x03")
t.wait_for(b"[stopped]", 60)
t.wait_for(b"> ")
t.send(b"/quit\r")
code = t.status()
if code != 0:
    sys.exit(f"/quit: status {code}")
