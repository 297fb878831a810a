// Browsers load no workers from files. This class runs the worker of the search in a hidden frame,
// so that the site's search works without a server.
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.inside = frame.contentWindow;
    this.inside.postMessage = (data) =>
      this.dispatchEvent(new MessageEvent("message", { data }));
    this.inside.importScripts = (...urls) =>
      urls.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve());
    this.ready = this.load(url);
  }
  load(url) {
    return new Promise((resolve, reject) => {
      const script = this.inside.document.createElement("script");
      script.src = new URL(url, document.baseURI);
      script.onload = resolve;
      script.onerror = reject;
      this.inside.document.body.append(script);
    });
  }
  set onmessage(listener) {
    this.addEventListener("message", listener);
  }
  async postMessage(data) {
    await this.ready;
    this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
  }
  terminate() {
    this.inside.frameElement.remove();
  }
};
if (location.protocol === "file:") window.Worker = window.IFrameWorker;
