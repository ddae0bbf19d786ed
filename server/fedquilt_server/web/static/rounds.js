// New rows of the table of rounds. htmx replaces the whole table when its columns change.
import { byId, onEvent, parse } from "./dom.js";

export function startRounds() {
  onEvent("round-rows", (html) => {
    const box = byId("rounds");
    const body = box.querySelector("tbody");
    if (!body) return;
    body.prepend(parse(html));
    const most = Number(box.dataset.most);
    while (body.rows.length > most) body.rows[body.rows.length - 1].remove();
  });
}
