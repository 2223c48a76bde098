/* A browser starts no Worker for a page that was opened from a folder (file://), and the search is one. There, and only
   there, run its script in a hidden frame instead: messages go in and out as they would with a Worker. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve) => {
        this.frame.onload = resolve;
      });
      document.body.append(this.frame);
      const scope = this.frame.contentWindow;
      scope.document.open();
      scope.importScripts = (...scripts) => Promise.all(scripts.map((script) => load(scope.document, script)));
      scope.postMessage = (data) => this.deliver(data);
      scope.document.write(`<script src="${url}"><\/script>`);
      scope.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    deliver(data) {
      const message = new MessageEvent("message", { data });
      if (this.onmessage) this.onmessage(message);
      this.dispatchEvent(message);
    }

    terminate() {
      this.frame.remove();
    }
  };

  const load = (page, url) =>
    new Promise((resolve) => {
      const script = page.createElement("script");
      script.src = url;
      script.onload = resolve;
      page.head.append(script);
    });
}
