//! A browser without a window, driven over a pair of pipes by its DevTools protocol.
//!
//! Owns the process and the messages. Must not know what any page is about.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// The name of a browser on this machine, if there is one.
pub(crate) fn program() -> Option<String> {
    let named = std::env::var("BERTH_CHROMIUM").ok();
    let usual = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    named.into_iter().chain(usual.map(str::to_owned)).find(|name| {
        let version = Command::new(name).arg("--version").stderr(Stdio::null()).output();
        version.is_ok_and(|output| output.status.success())
    })
}

/// A tab, with everything that happened in it so far.
pub(crate) struct Tab {
    browser: Child,
    pipe: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    /// Exceptions, console messages and log entries.
    pub(crate) complaints: Vec<String>,
    /// Addresses that were asked for.
    pub(crate) requests: Vec<String>,
    loads: usize,
}

impl Tab {
    /// Starts the browser, which keeps its files in `profile`.
    pub(crate) fn open(program: &str, profile: &Path) -> Self {
        // It reads commands from descriptor 3 and answers on 4.
        let mut browser = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", program])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--remote-debugging-pipe", "--force-color-profile=srgb"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pipe = browser.stdin.take().unwrap();
        let mut answers = BufReader::new(browser.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while answers.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { break };
                if sender.send(value).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let mut tab = Self {
            browser,
            pipe,
            messages,
            session: None,
            last_id: 0,
            complaints: Vec::new(),
            requests: Vec::new(),
            loads: 0,
        };
        let target = tab.call("Target.createTarget", json!({"url": "about:blank"}));
        let about = json!({"targetId": target["targetId"], "flatten": true});
        let session = tab.call("Target.attachToTarget", about);
        tab.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            tab.call(&format!("{domain}.enable"), json!({}));
        }
        tab
    }

    /// Calls a method of the protocol and waits for what it gives.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.pipe.write_all(&text).unwrap();
        loop {
            let answer = self.next(method);
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn next(&mut self, waiting_for: &str) -> Value {
        let message = self.messages.recv_timeout(PATIENCE);
        message.unwrap_or_else(|error| panic!("the browser is silent ({error}): {waiting_for}"))
    }

    fn note(&mut self, event: &Value) {
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded" => {
                self.complaints.push(event["params"].to_string());
            }
            "Network.requestWillBeSent" => {
                let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            "Page.loadEventFired" => self.loads += 1,
            _ => {}
        }
    }

    /// A window of this size, in a light or a dark scheme.
    pub(crate) fn resize(&mut self, width: u32, height: u32, scheme: &str) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Loads a file and waits until it is loaded.
    pub(crate) fn load(&mut self, file: &Path) {
        self.complaints.clear();
        self.requests.clear();
        let before = self.loads;
        self.call("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        while self.loads == before {
            let event = self.next("load");
            self.note(&event);
        }
    }

    /// The value of an expression, after two frames have been drawn.
    pub(crate) fn ask(&mut self, expression: &str) -> Value {
        let settled = format!(
            "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))\
             .then(() => ({expression}))"
        );
        let about = json!({"expression": settled, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", about);
        let failed = &answer["exceptionDetails"];
        assert!(failed.is_null(), "{expression}: {failed}");
        answer["result"]["value"].clone()
    }

    /// Presses and releases a key.
    pub(crate) fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let about =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            self.call("Input.dispatchKeyEvent", about);
        }
    }

    /// Moves the pointer to a place in the window.
    pub(crate) fn point(&mut self, x: f64, y: f64) {
        self.mouse("mouseMoved", "none", x, y);
    }

    /// Presses the button at one place and lets go at another, `across` further to the right.
    pub(crate) fn drag(&mut self, x: f64, y: f64, across: f64) {
        self.point(x, y);
        self.mouse("mousePressed", "left", x, y);
        self.mouse("mouseMoved", "left", x + across, y);
        self.mouse("mouseReleased", "left", x + across, y);
    }

    fn mouse(&mut self, kind: &str, button: &str, x: f64, y: f64) {
        let about = json!({"type": kind, "x": x, "y": y, "button": button, "clickCount": 1});
        self.call("Input.dispatchMouseEvent", about);
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        let close = json!({"id": self.last_id + 1, "method": "Browser.close"}).to_string();
        let _ = self.pipe.write_all(close.as_bytes()).and_then(|()| self.pipe.write_all(&[0]));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if matches!(self.browser.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}
