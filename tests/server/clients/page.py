"""The page of the server in headless Chromium."""

import json
import sys

from browser import Browser
from harness import Nano, Recorder, Scripted, checks, is_, run_checks

KILN = "A kiln is a furnace for firing or burning or drying such things as porcelain or bricks."
ENTER, ESCAPE, SHIFT = ("Enter", 13), ("Escape", 27), 8
GOES_ON = """\
== plain
accepted 10 0
reasoning Well.
reasoning_end
text Once upon
step
text \\sa time
wait
== plain
accepted 30 0
text The end.
finish stop 30 0 3 0
"""
HOSTILE = """\
== plain
accepted 10 0
reasoning <img src=x onerror="window.isHurt = 1"> thought
reasoning_end
text <script>window.isHurt = 1</script><b>bold</b>\\n```\\n<img src=x onerror="window.isHurt = 1">\\n```\\n`<i>`
call call_AAAAAAAAAAAAAAAAAAAAAAA1 <u>name</u>
args {"a": "<img src=x onerror='window.isHurt = 1'>"}
end
finish calls 10 0 20 8
"""
TOOLS = """\
== tools
accepted 10 0
reasoning I need both.
reasoning_end
call call_AAAAAAAAAAAAAAAAAAAAAAA1 get_time
args {"city": "Oslo"}
end
call call_AAAAAAAAAAAAAAAAAAAAAAA2 get_time
args {"city": "Rome"}
end
finish calls 10 0 20 8
== tools
accepted 40 30
text Noon in both.
finish stop 40 30 6 0
"""


def open_page(b, port):
    b.open(f"http://127.0.0.1:{port}/")
    b.until("document.getElementById('model').textContent === 'nano'")


def send(b, text):
    b.evaluate("document.getElementById('input').focus()")
    b.type(text)
    b.press(*ENTER)


def set_field(b, name, value):
    b.evaluate(
        f"(field => {{ field.value = {json.dumps(value)}; field.dispatchEvent(new Event('input')); }})"
        f"(document.getElementById('settings-form').elements[{json.dumps(name)}])"
    )


def texts(b):
    """Of the turns, their visible text."""
    return b.evaluate("[...document.querySelectorAll('.turn > .text')].map(e => e.textContent)")


def status(b):
    return b.evaluate("document.getElementById('status').textContent")


def until_status(b, words):
    b.until(f"document.getElementById('status').textContent === {json.dumps(words)}")


def is_content(b):
    """Nothing failed in the page. Routes that are switched off may be missing."""
    is_([c for c in b.complaints if not c.endswith(("/metrics", "/slots"))], [])


def check_an_answer():
    with Nano("--unknown-fields", "error") as s, Browser() as b:
        open_page(b, s.port)
        set_field(b, "temperature", "0")
        set_field(b, "thinking", "off")
        send(b, "What is a kiln?")
        until_status(b, "The answer is complete")
        is_(texts(b), ["What is a kiln?", KILN])
        is_("tok/s" in b.evaluate("document.getElementById('speed').textContent"), True)
        is_(b.evaluate("document.getElementById('context-text').textContent").endswith("of 32,768 tokens"), True)
        b.until("document.getElementById('rounds-text').textContent.includes('rounds')")
        rounds = b.evaluate("[...document.querySelectorAll('#rounds li')].map(e => e.getAttribute('aria-label'))")
        is_(rounds[0].startswith("1 token: ") and sum(int(r.split()[2]) for r in rounds) > 1, True)
        is_(b.evaluate("['running', 'waiting'].map(id => document.getElementById(id).textContent)"), ["0", "0"])
        # A second turn has the first behind it.
        send(b, "What is a kiln?")
        b.until("document.querySelectorAll('.turn').length === 4")
        until_status(b, "The answer is complete")
        is_content(b)


def check_without_figures():
    """/metrics off: /slots tells what runs. Both off: the parts are not shown."""
    with Nano("--metrics", "off") as s, Browser() as b:
        open_page(b, s.port)
        b.until("document.getElementById('running').textContent === '0 of 2'")
        is_(b.evaluate("document.getElementById('rounds-part').hidden"), True)


def check_stream_and_stop():
    with Scripted(GOES_ON) as s, Browser() as b:
        open_page(b, s.port)
        send(b, "A story.")
        b.until("document.querySelectorAll('.turn > .text')[1]?.textContent === 'Once upon a time'")
        is_(b.evaluate("document.querySelector('.thinking').open"), False)
        is_(b.evaluate("document.querySelector('.thinking .plain').textContent"), "Well.")
        is_(status(b), "Answering")
        is_(b.evaluate("document.getElementById('send').hidden"), True)
        b.evaluate("document.getElementById('stop').click()")
        until_status(b, "Stopped")
        is_(b.evaluate("document.querySelectorAll('.meta')[1].textContent.includes('stopped')"), True)
        is_(b.evaluate("document.activeElement.id"), "input")
        send(b, "Go on.")
        until_status(b, "The answer is complete")
        is_(texts(b), ["A story.", "Once upon a time", "Go on.", "The end."])
        is_content(b)


def check_keys():
    """Enter sends, with Shift it does not; Tab goes on to the button; Escape stops."""
    with Scripted(GOES_ON) as s, Browser() as b:
        open_page(b, s.port)
        b.evaluate("document.getElementById('input').focus()")
        b.type("A story.")
        b.press(*ENTER, SHIFT)
        is_(texts(b), [])
        b.press("Tab", 9)
        is_(b.evaluate("document.activeElement.id"), "send")
        b.evaluate("document.getElementById('input').value = ''")
        send(b, "A story.")
        b.until("document.querySelectorAll('.turn > .text')[1]?.textContent === 'Once upon a time'")
        b.press(*ESCAPE)
        until_status(b, "Stopped")


def check_reload():
    with Scripted(GOES_ON) as s, Recorder(s, 2) as r, Browser() as b:
        open_page(b, r.port)
        set_field(b, "system", "You are terse.")
        set_field(b, "top_k", "7")
        send(b, "A story.")
        b.until("document.querySelectorAll('.turn > .text')[1]?.textContent === 'Once upon a time'")
        b.evaluate("document.getElementById('input').focus()")
        b.type("half a thought")
        b.reload()
        b.until("document.querySelectorAll('.turn').length === 2")
        is_(texts(b), ["A story.", "Once upon a time"])
        is_(b.evaluate("document.getElementById('input').value"), "half a thought")
        is_(b.evaluate("document.getElementById('settings-form').elements.top_k.value"), "7")
        b.until("document.getElementById('model').textContent === 'nano'")
        send(b, "")
        until_status(b, "The answer is complete")
        body = r.turns()[1].json
        is_(body["top_k"], 7)
        is_(
            body["messages"],
            [
                {"role": "system", "content": "You are terse."},
                {"role": "user", "content": "A story."},
                {"role": "assistant", "content": "Once upon a time", "reasoning_content": "Well."},
                {"role": "user", "content": "half a thought"},
            ],
        )
        b.evaluate("document.getElementById('new-chat').click()")
        b.reload()
        is_(texts(b), [])


def check_markup_stays_text():
    with Scripted(HOSTILE) as s, Browser() as b:
        open_page(b, s.port)
        send(b, "<b>Hello</b>")
        until_status(b, "The answer waits for the results of its tools")
        is_(b.evaluate("document.querySelectorAll('#turns :is(img, script, b, i, u)').length"), 0)
        is_(b.evaluate("typeof window.isHurt"), "undefined")
        text = b.evaluate("document.getElementById('turns').textContent")
        for piece in ("<b>Hello</b>", "<script>window.isHurt = 1</script><b>bold</b>", "<u>name</u>", "onerror='window"):
            is_(piece in text, True)
        is_(b.evaluate("[...document.querySelectorAll('#turns code')].map(e => e.textContent)"),
            ['<img src=x onerror="window.isHurt = 1">', "<i>"])
        b.reload()
        is_(b.evaluate("document.querySelectorAll('#turns :is(img, script, b, i, u)').length"), 0)
        is_content(b)


def check_tools():
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
    with Scripted(TOOLS) as s, Recorder(s, 2) as r, Browser() as b:
        open_page(b, r.port)
        set_field(b, "tools", "[{")
        is_(b.evaluate("document.getElementById('tools-error').textContent").startswith("Tools are not sent"), True)
        set_field(b, "tools", json.dumps([tool]))
        is_(b.evaluate("document.getElementById('tools-error').textContent"), "")
        send(b, "What time is it?")
        until_status(b, "The answer waits for the results of its tools")
        is_(b.evaluate("[...document.querySelectorAll('.call > summary')].map(e => e.textContent)"),
            ["Tool call: get_time"] * 2)
        b.evaluate("document.querySelector('.result textarea').focus()")
        for result in "12:00", "12:01":
            b.type(result)
            b.evaluate("document.activeElement.form.requestSubmit()")
        until_status(b, "The answer is complete")
        is_(texts(b)[-1], "Noon in both.")
        body = r.turns()[1].json
        is_(body["tools"], [tool])
        said, *results = body["messages"][1:]
        is_(said["reasoning_content"], "I need both.")
        is_([c["function"]["arguments"] for c in said["tool_calls"]], ['{"city": "Oslo"}', '{"city": "Rome"}'])
        is_([(m["role"], m["tool_call_id"][-1], m["content"]) for m in results], [("tool", "1", "12:00"), ("tool", "2", "12:01")])
        is_content(b)


def check_api_key():
    with Nano("--api-key", "secret") as s, Browser() as b:
        b.open(f"http://127.0.0.1:{s.port}/")
        for key in ("wrong", "secret"):
            b.until("document.getElementById('key-dialog').open && document.activeElement.id === 'key'")
            b.type(key)
            b.evaluate("document.getElementById('key-form').requestSubmit()")
        b.until("document.getElementById('model').textContent === 'nano'")
        set_field(b, "max_tokens", "3")
        send(b, "Hello.")
        until_status(b, "The answer is complete")
        b.reload()
        b.until("document.getElementById('model').textContent === 'nano'")


def check_an_error():
    with Scripted("== plain\naccepted 1 0\ntext Half\nstep\nerror 9 it broke\n") as s, Browser() as b:
        open_page(b, s.port)
        set_field(b, "top_p", "2")
        send(b, "Hello.")
        b.until("document.querySelector('.error:not([hidden])')?.textContent.includes('top_p')")
        set_field(b, "top_p", "")
        b.evaluate("[...document.querySelectorAll('.turn.assistant button')].at(-1).click()")
        b.until("document.querySelectorAll('.turn > .text')[1].textContent === 'Half'")
        b.until("document.querySelector('.error:not([hidden])')?.textContent.includes('it broke')")


def check_for_all():
    """Names for a screen reader, contrast in both schemes, and a narrow window."""
    contrast = """(() => {
        const probe = document.body.appendChild(document.createElement('p'));
        const light = name => {
            probe.style.color = `var(--${name})`;
            const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(v => v / 255)
                .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const pairs = [['text', 'back'], ['text', 'raised'], ['text', 'user'], ['quiet', 'back'], ['quiet', 'raised'],
                       ['on-accent', 'accent'], ['alarm', 'back']];
        const least = Math.min(...pairs.map(([a, b]) => {
            const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
            return (high + 0.05) / (low + 0.05);
        }));
        probe.remove();
        return least;
    })()"""
    with Scripted(GOES_ON) as s, Browser() as b:
        open_page(b, s.port)
        for scheme in ("light", "dark"):
            b.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            is_(b.evaluate(contrast) >= 4.5, True)
        for opener in ("", "document.getElementById('show-settings').click()"):
            b.evaluate(opener or "0")
            controls = [n for n in b.names() if n[0] in ("button", "textbox", "combobox", "spinbutton", "progressbar")]
            is_(len(controls) > 3, True)
            is_([n for n in controls if not n[1]], [])
        b.evaluate("document.getElementById('settings').close()")
        b.call("Emulation.setDeviceMetricsOverride", width=360, height=640, deviceScaleFactor=1, mobile=True)
        is_(b.evaluate("document.documentElement.scrollWidth"), 360)
        b.reload()
        is_(b.evaluate("document.getElementById('panel').hidden"), True)
        b.evaluate("document.getElementById('show-panel').click()")
        b.reload()
        is_(b.evaluate("document.getElementById('panel').hidden"), False)
        is_(b.evaluate("document.getElementById('send').getBoundingClientRect().right <= 360"), True)


if __name__ == "__main__":
    sys.exit(run_checks("page", checks(globals())))
