// Pages follow by themselves: the server says that something changed, htmx fetches the part anew.
"use strict";
(() => {
  const part = document.querySelector("[data-events]");
  const lost = document.getElementById("lost");
  if (!part || !lost) return;
  const source = new EventSource(part.dataset.events);
  source.addEventListener("change", () => {
    lost.hidden = true;
    htmx.trigger(part, "refresh");
  });
  source.addEventListener("locked", () => {
    source.close();
    location.reload();
  });
  source.addEventListener("open", () => { lost.hidden = true; });
  source.addEventListener("error", () => { lost.hidden = false; }); // the browser tries again
})();
