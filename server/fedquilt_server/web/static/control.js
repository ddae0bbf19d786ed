// Sends the forms that control the run without leaving the page, and shows the answer.
import { byId } from "./dom.js";

const DONE = {
  pause: "The run pauses after the open round.",
  continue: "The run goes on.",
  stop: "The run ends after the open round.",
  drop: "The board is dropped.",
  readmit: "The board may take part again.",
};

async function answerOf(response, action) {
  if (response.ok) return DONE[action];
  if (response.status === 401) return "This browser no longer has the page's token.";
  const body = await response.json().catch(() => ({}));
  return typeof body.detail === "string" ? body.detail : `The request failed with status ${response.status}.`;
}

async function send(event) {
  event.preventDefault();
  const action = event.submitter.value;
  const board = new FormData(event.target).get("board") ?? "";
  const shown = byId("control-answer");
  try {
    const headers = { "Content-Type": "application/json" };
    const response = await fetch("api/v1/control", { method: "POST", headers, body: JSON.stringify({ action, board }) });
    shown.textContent = await answerOf(response, action);
  } catch {
    shown.textContent = "The coordinator does not answer.";
  }
}

export function startControl() {
  byId("control")?.addEventListener("submit", send);
}
