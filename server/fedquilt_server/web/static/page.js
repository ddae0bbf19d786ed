// The entry of the page's script. Each file does one thing; the server formats all values.
import { tick, updateTitle } from "./clock.js";
import { connect } from "./connection.js";
import { startAnnouncer } from "./announcer.js";
import { startBoards } from "./boards.js";
import { startCharts } from "./charts.js";
import { startDrawer } from "./drawer.js";
import { startControl } from "./control.js";
import { startCopying } from "./copy.js";
import { startEvents } from "./events.js";
import { startQuilt } from "./quilt.js";
import { startRounds } from "./rounds.js";
import { startTimeline } from "./timeline.js";

for (const start of [startCharts, startBoards, startDrawer, startEvents, startRounds, startTimeline, startQuilt, startCopying, startControl, startAnnouncer]) {
  start();
}
connect();
tick();
updateTitle();
