// Draws the report in #report (isobar-report/1). Numbers are computed in C++; this file only shows them.
"use strict";
(() => {
const report = JSON.parse(document.getElementById("report").textContent);
report.runs ??= [];  // a page of schedules has none
let run = report.runs[0];

// ---- Text -------------------------------------------------------------------------------------------------------

const digits = (value, most) => Number(value.toPrecision(most)).toString();
const prefixed = (value, steps) => {
  const [size, unit] = steps.find(([size]) => Math.abs(value) >= size) ?? steps.at(-1);
  return `${digits(value / size, 3)} ${unit}`;
};
const MISSING = "–";
const known = text_of => value => value === null || value === undefined ? MISSING : text_of(value);
const seconds = known(value => value >= 1 ? `${digits(value, 5)} s` : prefixed(value, [[1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]));
const bytes = known(value => prefixed(value, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]));
const rate = unit => known(value => prefixed(value, [[1e15, `P${unit}`], [1e12, `T${unit}`], [1e9, `G${unit}`], [1e6, `M${unit}`], [1e3, `k${unit}`], [1, unit]]));
const speed = rate("FLOP/s");
const bandwidth = value => value === null ? "no limit" : rate("B/s")(value);
// Below 1e-9 a number is rounding: so close a plan counts as optimal.
const percent = known(value => Math.abs(value) < 1e-9 ? "0 %" : Math.abs(value) < 1e-4 ? "<0.01 %" : `${digits(100 * value, 3)} %`);
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const change = known(value => Math.abs(value) < 5e-5 ? "±0 %" : `${value > 0 ? "+" : "−"}${(100 * Math.abs(value)).toFixed(2)} %`);
// A row of run.stages is a replica of a stage; of most stages the only one.
const stage_name = row => row.replicas > 1 ? `${row.stage}.${row.replica}` : `${row.stage}`;
const part_of_step = row => [row.replicas > 1 ? `replica ${row.replica} of ${row.replicas}, ${row.microbatches} of ${run.microbatches} micro-batches` : "",
                             row.shards > 1 ? `shard ${row.shard} of ${row.shards}` : ""].filter(Boolean).join(", ");
const stages_of = each => 1 + Math.max(...each.stages.map(row => row.stage));
// A row with `residence` does not live on its device alone: what of its layers is elsewhere, and how it passes.
const moves = () => run.stages.some(row => row.residence);
const layer_count = row => row.last_layer - row.first_layer + 1;
const stay = row => `${row.resident_layers} of ${layer_count(row)}`;
const elsewhere = row => ["parameters", "gradients", "optimizer", "activations"].filter(what => (row.residence[what] ?? "device") !== "device")
  .map(what => row.residence[what] === "disk" ? `${what} (disk)` : what).join(", ");
const places_of = row => [["parameters", row.residence.parameter_slots], ["gradients", row.residence.gradient_slots]].filter(([, count]) => count)
  .map(([what, count]) => `${count} of ${what}`).join(", ") || MISSING;
const layers = stage => stage.first_layer === stage.last_layer ? `${stage.first_layer}` : `${stage.first_layer}–${stage.last_layer}`;
const cut = (text, most) => [...text].length > most ? `${[...text].slice(0, most - 1).join("")}…` : text;
// Plotly interprets tags and entities in labels; names are plain text.
const plain = (text, most = 60) => cut(text, most).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const lines = (...parts) => parts.filter(Boolean).join("<br>");

// What tells the runs apart: the allocator, with the objective; the schedule; the file, where the others do not.
const label_parts = (() => {
  const differ = key => new Set(report.runs.map(each => each[key])).size > 1;
  // The warm-up of many devices is too long for a name.
  const short_schedule = each => each.schedule.replace(/(=[^;)]{8})[^;)]+/g, "$1…");
  const parts = report.runs.map(each => ({allocator: differ("objective") ? `${each.objective} · ${each.allocator}` : each.allocator,
                                          schedule: differ("schedule") ? short_schedule(each) : null}));
  const is_alike = (one, other) => one.allocator === other.allocator && one.schedule === other.schedule;
  return parts.map((each, i) => ({...each, file: parts.filter(other => is_alike(each, other)).length > 1 ? report.runs[i].file : null}));
})();
const in_parentheses = texts => texts.some(Boolean) ? ` (${texts.filter(Boolean).join(", ")})` : "";
const labels = label_parts.map(({allocator, schedule, file}) => allocator + in_parentheses([schedule, file]));

// ---- Colours ----------------------------------------------------------------------------------------------------

let printing = false;
const drawn_for_paper = () => printing || report.figure !== undefined;
function theme() {
  const styles = getComputedStyle(document.documentElement);
  const of = name => styles.getPropertyValue(`--${name}`).trim();
  return drawn_for_paper()
    ? {back: "#ffffff", text: "#000000", quiet: "#444444", line: "#d5dae1", accent: "#0b5cab", idle: "#c3c9d1"}
    : {back: of("back"), text: of("text"), quiet: of("quiet"), line: of("line"), accent: of("accent"), idle: of("idle")};
}
// The hue follows the chain; neighbours also differ in lightness.
const colour_of_stage = (stage, count) => `hsl(${Math.round(210 + 290 * stage / Math.max(1, count))}, 52%, ${stage % 2 ? 62 : 48}%)`;
const KINDS = [["Forward", "#3f7fd6"], ["Backward", "#dd8a2e"], ["BackwardInput", "#dd8a2e"], ["BackwardWeight", "#b9552b"], ["AllReduce", "#8a8f98"],
               ["ReduceScatter", "#6f7680"], ["AllGather", "#a4a9b1"], ["AllToAll", "#59616c"], ["Broadcast", "#bcc1c8"], ["Update", "#8463c9"],
               ["Send activation", "#2f9b78"], ["Send gradient", "#c05a86"], ["Send parameter", "#6d9b2f"], ["Send parameter gradient", "#9b6d2f"],
               ["Copy of parameters", "#1b9fb8"], ["Copy of gradients", "#cf4a5a"], ["Copy of activations", "#5f9e3a"], ["Copy of optimizer state", "#8d6e53"],
               ["Update by the machine", "#5a3fa6"]];
// What lies below the rows of a device, in this order.
const MACHINE_LANES = ["copy in", "copy out", "host update", "disk read", "disk write"];
const COPIED = {parameter: "parameters", "parameter gradient": "gradients", activation: "activations", optimizer: "optimizer state"};
const COMPUTATIONS = ["Forward", "Backward", "BackwardInput", "BackwardWeight", "Update"];
const LOADS = [[0.05, "#8aa0b8", "under 5 %"], [0.25, "#4f8fc0", "5 to 25 %"], [0.5, "#d9a441", "25 to 50 %"], [0.75, "#dd7a2e", "50 to 75 %"],
               [Infinity, "#cc3d3d", "75 % and more"]];

function layout_of(more) {
  const {back, text, line} = theme();
  const axis = {gridcolor: line, linecolor: line, zeroline: false, automargin: true, fixedrange: true};
  const layout = {
    paper_bgcolor: back, plot_bgcolor: back, margin: {l: 60, r: 16, t: 24, b: 44}, hovermode: "closest",
    font: {family: 'system-ui, "Helvetica Neue", Arial, sans-serif', size: 12, color: text},
    legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0}, bargap: 0.25, ...more};
  for (const name of Object.keys(layout).filter(name => /^[xy]axis/.test(name))) layout[name] = {...axis, ...layout[name]};
  return layout;
}
const heading = (text, x, y) => ({text, x, y, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false});

// ---- Charts: each returns data and layout for Plotly ------------------------------------------------------------

// On a phone, charts side by side have no room for their names: they are stacked.
const narrow = () => !drawn_for_paper() && matchMedia("(max-width: 639px)").matches;

function comparison() {
  const {accent, idle, text} = theme();
  const below = narrow();
  const rows = report.runs.map((_, i) => i);
  const colours = report.runs.map(each => each === run ? accent : idle);
  const panel = (number, values, text_of, name) => ({
    type: "bar", orientation: "h", name, y: rows, x: values, xaxis: `x${number}`, yaxis: below ? `y${number}` : "y", marker: {color: colours}, text: values.map(text_of),
    textposition: "auto", insidetextanchor: "start", textangle: 0, hovertext: values.map((value, i) => lines(plain(labels[i]), `${name} ${text_of(value)}`)), hoverinfo: "text"});
  const bounds = report.runs.map(each => each.step_bound_s);
  const names = {tickvals: rows, ticktext: label_parts.map(({allocator, schedule, file}) => lines(plain(allocator, 36), plain([schedule, file].filter(Boolean).join(", "), 36))), autorange: "reversed", showgrid: false};
  return {
    data: [panel("", report.runs.map(each => each.step_time_s), seconds, "step time"),
           {type: "scatter", mode: "markers", name: "step bound", y: rows, x: bounds, hoverinfo: "text",
            marker: {symbol: "line-ns-open", size: 20, color: text, line: {width: 2, color: text}},
            hovertext: bounds.map((value, i) => lines(plain(labels[i]), `no order of its passes takes less than ${seconds(value)} from idle devices`))},
           panel("2", report.runs.map(each => each.gap_fraction), percent, "gap"),
           panel("3", report.runs.map(each => each.peak_memory_bytes / 2 ** 30), value => `${digits(value, 3)} GiB`, "memory")],
    layout: layout_of(below ? {
      height: 3 * (70 + 34 * rows.length), showlegend: false, margin: {l: 20, r: 16, t: 30, b: 30},
      yaxis: {...names, domain: [0.74, 1]}, yaxis2: {...names, domain: [0.37, 0.63]}, yaxis3: {...names, domain: [0, 0.26]},
      xaxis: {rangemode: "tozero"}, xaxis2: {rangemode: "tozero", tickformat: ".0%", anchor: "y2"}, xaxis3: {rangemode: "tozero", anchor: "y3"},
      annotations: [heading("step time in s; mark: its bound", 0, 1), heading("gap to the bound", 0, 0.63),
                    heading("fullest device, GiB", 0, 0.26)]} : {
      height: 90 + 34 * rows.length, showlegend: false, margin: {l: 60, r: 16, t: 30, b: 30},
      yaxis: names,
      xaxis: {domain: [0, 0.5], rangemode: "tozero"}, xaxis2: {domain: [0.54, 0.75], rangemode: "tozero", tickformat: ".0%"},
      xaxis3: {domain: [0.79, 1], rangemode: "tozero"},
      annotations: [heading("step time in s; mark: its bound", 0, 1), heading("gap to the bound", 0.54, 1),
                    heading("fullest device, GiB", 0.79, 1)]})};
}

function plan() {
  const {quiet, text} = theme();
  const stages = run.stages;
  const x = stages.map((_, i) => i);
  const colours = stages.map(({stage}) => colour_of_stage(stage, stages_of(run)));
  const hover = stages.map(stage => lines(
    `stage ${stage_name(stage)} on ${plain(stage.device)}`, part_of_step(stage), stage.type && plain(stage.type), `layers ${layers(stage)}: ${plain(stage.first_layer_name)} to ${plain(stage.last_layer_name)}`,
    stage.residence && `${stay(stage)} layers stay on the device; in its machine: ${elsewhere(stage)}`,
    stage.residence && places_of(stage) !== MISSING && `places on the device: ${places_of(stage)}`, stage.residence?.overlap && `the machine updates: ${stage.residence.overlap}`,
    speed(stage.speed_flops_per_s), `${bytes(stage.peak_memory_bytes)} of ${bytes(stage.memory_bytes)}`,
    `computes ${seconds(stage.compute_s)}, sends ${seconds(stage.send_s)}, idle ${seconds(stage.idle_s)}`));
  const bars = (y, axis, name, more) => ({type: "bar", name, x, y, yaxis: axis, marker: {color: colours}, hovertext: hover, hoverinfo: "text", ...more});
  const few = stages.length <= 24;
  const faded = {color: colours, opacity: 0.45};
  const named = has_name => few ? stages.map(stage => has_name(stage) ? layers(stage) : "") : undefined;
  return {
    data: [bars(stages.map(layer_count), "y", "layers", {text: named(stage => !moves() || !stage.resident_layers), textposition: "auto", ...(moves() ? {marker: faded, insidetextfont: {color: text}} : {})}),
           ...(moves() ? [bars(stages.map(stage => stage.resident_layers), "y", "stay", {text: named(stage => stage.resident_layers), textposition: "auto"})] : []),
           bars(stages.map(stage => stage.compute_s), "y2", "computes"),
           bars(stages.map(stage => stage.speed_flops_per_s / 1e12), "y3", "speed"),
           bars(stages.map(stage => stage.memory_bytes / 2 ** 30), "y4", "has", {marker: {color: "rgba(0,0,0,0)", line: {color: quiet, width: 1}}}),
           bars(stages.map(stage => stage.peak_memory_bytes / 2 ** 30), "y4", "uses")],
    layout: layout_of({
      height: 560, showlegend: false, barmode: "overlay", margin: {l: 60, r: 16, t: 26, b: 30},
      xaxis: {tickvals: x, ticktext: stages.map(stage => plain(stage.device, 22)), tickangle: few && stages.length < (narrow() ? 3 : 9) ? 0 : -60, anchor: "y4", showgrid: false,
              tickmode: stages.length > 70 ? "auto" : "array", range: [-0.6, stages.length - 0.4]},
      yaxis: {domain: [0.79, 1]}, yaxis2: {domain: [0.525, 0.735]}, yaxis3: {domain: [0.26, 0.47]}, yaxis4: {domain: [0, 0.205]},
      annotations: [heading(moves() ? "layers; darker: those that stay on the device" : "layers", 0, 1), heading("compute per step, s", 0, 0.735), heading("speed, TFLOP/s", 0, 0.47),
                    heading("memory used of available, GiB", 0, 0.205)]})};
}

/// Positions of sites and devices: sites on a ring, the devices of a site in a spiral around it.
function places() {
  const turn = Math.PI * (3 - Math.sqrt(5));
  const radius = site => site.devices.length < 2 ? 0.35 : 0.55 * Math.sqrt(site.devices.length) + 0.35;
  const widest = Math.max(...run.sites.map(radius));
  const ring = run.sites.length === 1 ? 0
    : run.sites.length === 2 ? (radius(run.sites[0]) + radius(run.sites[1])) / 3 + 0.8 : Math.max(2 * widest, 1.5 * widest / Math.sin(Math.PI / run.sites.length));
  return run.sites.map((site, i) => {
    const angle = Math.PI - 2 * Math.PI * i / run.sites.length;
    const centre = [1.5 * ring * Math.cos(angle), ring * Math.sin(angle)];
    const devices = site.devices.map((_, k) => site.devices.length === 1 ? centre
      : [centre[0] + 0.55 * Math.sqrt(k + 0.8) * Math.cos(k * turn), centre[1] + 0.55 * Math.sqrt(k + 0.8) * Math.sin(k * turn)]);
    return {centre, devices, radius: radius(site)};
  });
}

const synced = connection => connection.sync_a_to_b_bytes + connection.sync_b_to_a_bytes;

// The devices of more sites are too close for names.
const names_devices = () => run.sites.length <= 3 && run.sites.reduce((sum, site) => sum + site.devices.length, 0) <= 24 && !narrow();

function map() {
  const {idle, text, back} = theme();
  const place = places();
  const wires = [];  // from, to, busy_fraction, hover text, width
  for (const each of run.connections) {
    const {a, b} = each;
    const busy = each.busiest_link?.busy_fraction ?? 0;
    wires.push([place[a].centre, place[b].centre, busy, lines(
      `${plain(run.sites[a].name)} ↔ ${plain(run.sites[b].name)}`, `${bytes(each.a_to_b_bytes)} there, ${bytes(each.b_to_a_bytes)} back per step`,
      synced(each) > 0 && `to add up gradients ${bytes(each.sync_a_to_b_bytes)} there, ${bytes(each.sync_b_to_a_bytes)} back`,
      each.busiest_link && `busiest link ${plain(each.busiest_link.name)}: ${percent(busy)} of the step`,
      `${bandwidth(each.bandwidth_bytes_per_s)}, ${seconds(each.latency_s)} one way`), 3 + 7 * busy]);
  }
  run.sites.forEach((site, i) => site.devices.forEach((device, k) => {
    if (!device.stages.length || site.devices.length === 1) return;
    const link = run.stages[device.stages[0]].own_link;
    if (link) wires.push([place[i].devices[k], place[i].centre, link.busy_fraction, lines(`link ${plain(link.name)} of ${plain(device.name)}`,
      `${bytes(link.bytes)} per step, busy ${percent(link.busy_fraction)} of it`), 2]);
  }));
  const data = [];
  LOADS.forEach(([most, color, name], k) => {
    const least = k ? LOADS[k - 1][0] : 0;
    const loaded = wires.filter(wire => wire[2] >= least && wire[2] < most);
    const widths = [...new Set(loaded.map(wire => wire[4]))];
    widths.forEach((width, i) => {
      const alike = loaded.filter(wire => wire[4] === width);
      const ends = axis => alike.flatMap(([from, to]) => [from[axis], to[axis], null]);
      data.push({type: "scatter", mode: "lines", x: ends(0), y: ends(1), line: {color, width}, hoverinfo: "skip", name: `busy ${name}`, legendgroup: name, showlegend: i === 0});
    });
  });
  data.push({type: "scatter", mode: "markers", name: "links", showlegend: false, x: wires.map(([from, to]) => (from[0] + to[0]) / 2),
             y: wires.map(([from, to]) => (from[1] + to[1]) / 2), marker: {size: 14, opacity: 0}, hovertext: wires.map(wire => wire[3]), hoverinfo: "text"});
  const fastest = Math.max(...run.sites.flatMap(site => site.devices.map(device => device.speed_flops_per_s)));
  const dots = run.sites.flatMap((site, i) => site.devices.map((device, k) => ({device, at: place[i].devices[k]})));
  const many = dots.length > 80;
  data.push({type: "scatter", mode: many ? "markers" : "markers+text", name: "devices", showlegend: false, x: dots.map(dot => dot.at[0]), y: dots.map(dot => dot.at[1]),
             text: dots.map(({device}) => device.stages.map(i => run.stages[i].stage).join(",")), textfont: {size: 10, color: "#ffffff"},
             marker: {size: dots.map(({device}) => (many ? 6 : 15) + (many ? 8 : 11) * Math.sqrt(device.speed_flops_per_s / fastest)), opacity: 1, line: {color: back, width: 1},
                      color: dots.map(({device}) => !device.stages.length ? idle : colour_of_stage(run.stages[device.stages[0]].stage, stages_of(run)).replace(/\d+%\)$/, "42%)"))},
             hovertext: dots.map(({device}) => lines(plain(device.name), device.type && plain(device.type), `${speed(device.speed_flops_per_s)}, ${bytes(device.memory_bytes)}`,
               ...(device.stages.length ? device.stages.map(i => [`stage ${stage_name(run.stages[i])}, layers ${layers(run.stages[i])}`, part_of_step(run.stages[i])].filter(Boolean).join(": ")) : ["idle"]))), hoverinfo: "text"});
  const servers = run.sites.flatMap((site, i) => site.is_data_server ? [i] : []);
  data.push({type: "scatter", mode: "markers", name: "data server", showlegend: servers.length > 0, x: servers.map(i => place[i].centre[0]), y: servers.map(i => place[i].centre[1]),
             marker: {symbol: "square", size: 16, color: text}, hovertext: servers.map(i => `data server ${plain(run.sites[i].name)}`), hoverinfo: "text"});
  const names = run.sites.map((site, i) => ({text: plain(site.name, 28), x: place[i].centre[0], y: place[i].centre[1] + place[i].radius + 0.15, showarrow: false, yanchor: "bottom"}));
  const device_names = !names_devices() ? [] : dots.map(({device, at}) => {
    const link = dots.length <= 8 && device.stages.length ? run.stages[device.stages[0]].own_link : null;
    return {text: lines(plain(device.name, 22), link && `${plain(link.name, 22)}: busy ${percent(link.busy_fraction)}`), x: at[0], y: at[1], yshift: -14, yanchor: "top",
            showarrow: false, font: {size: 10}};
  });
  const loads = run.connections.length > 12 ? [] : run.connections.map(({a, b, a_to_b_bytes, b_to_a_bytes, busiest_link, ...each}) => ({
    text: lines(bytes(a_to_b_bytes + b_to_a_bytes), synced(each) > 0 && `sync ${bytes(synced(each))}`, busiest_link && plain(busiest_link.name, 22), busiest_link && `busy ${percent(busiest_link.busy_fraction)}`), showarrow: false, bgcolor: back, font: {size: 11},
    x: (place[a].centre[0] + place[b].centre[0]) / 2, y: (place[a].centre[1] + place[b].centre[1]) / 2}));
  const hidden = {visible: false, fixedrange: true};
  return {data, layout: layout_of({height: run.sites.length === 1 ? 460 : 560, margin: {l: 8, r: 8, t: 34, b: 8}, xaxis: hidden, yaxis: {...hidden, scaleanchor: "x"},
                                   annotations: [...names, ...device_names, ...loads]})};
}

const is_of_machine = (events, i) => MACHINE_LANES.includes(events.lane[i]);
const kind_of = (events, i) => events.lane[i] === "host update" ? "Update by the machine" : is_of_machine(events, i) ? `Copy of ${COPIED[events.payload[i]]}`
  : events.opcode[i] === "Send" ? `Send ${events.payload[i]}` : events.opcode[i];
const computes = (events, i) => COMPUTATIONS.includes(events.opcode[i]);
const used_devices = () => [...new Set(run.stages.map(stage => stage.device))];  // by rank
const rank_name = rank => used_devices()[rank] ?? run.sites.find(site => site.is_data_server)?.name ?? `rank ${rank}`;
// "Load parameters for the backward", "Store activations 3 after the forward"
function copy_name(events, i) {
  const opcode = events.opcode[i], pass = events.pass[i];
  const when = opcode === "Read" || (opcode === "Load" && pass !== "Update") ? "for" : "after";
  return `${opcode} ${COPIED[events.payload[i]]}${events.payload[i] === "activation" ? ` ${events.microbatch[i]}` : ""} ${when} the ${pass.toLowerCase()}`;
}
function describe(events, i) {
  const opcode = events.opcode[i], payload = events.payload[i], rank = events.rank[i];
  const subject = payload === null || opcode === "Send" ? kind_of(events, i) : `${opcode} ${payload}`;
  const is_of_microbatch = payload === null ? opcode !== "Update" : ["activation", "gradient"].includes(payload);
  const stage = payload !== "gradient facts" ? run.stages.find(row => row.device === used_devices()[rank] && row.stage === events.stage[i]) : null;
  const has_layers = stage && (computes(events, i) || is_of_machine(events, i));
  return {name: events.pass[i] !== null ? copy_name(events, i) : is_of_microbatch ? `${subject} ${events.microbatch[i]}` : subject,
          where: stage ? `stage ${stage_name(stage)} on ${stage.device}` : rank < used_devices().length ? rank_name(rank) : `data server ${rank_name(rank)}`,
          layers: has_layers ? layers({first_layer: events.first_layer[i], last_layer: events.last_layer[i]}) : "",
          what: computes(events, i) ? (events.alone_s[i] > 0 ? `${seconds(events.alone_s[i])} alone` : "") : bytes(events.bytes[i])};
}

/// Where the rows of each rank begin, and which lanes of its machine lie below them.
const LANE_HEIGHT = 0.36;
function rows_of(events, ranks) {
  const used = Array.from({length: ranks}, () => new Set());
  events.rank.forEach((rank, i) => { if (is_of_machine(events, i)) used[rank].add(events.lane[i]); });
  let next = 0;
  return used.map(names => {
    const row = {at: next, lanes: MACHINE_LANES.filter(lane => names.has(lane))};
    next += 1 + LANE_HEIGHT * row.lanes.length + (row.lanes.length ? 0.15 : 0);
    return row;
  });
}

function timeline_of(recorded, until) {
  const {events} = recorded;
  const ranks = used_devices().length + (run.sites.some(site => site.is_data_server) ? 1 : 0);
  const rows = rows_of(events, ranks);
  const lane_at = (row, lane) => row.at + 0.5 + LANE_HEIGHT * (row.lanes.indexOf(lane) + 0.5);
  const end = rows.at(-1).at + LANE_HEIGHT * rows.at(-1).lanes.length;
  // Computations are in the upper row of a device; below it messages onwards and back, and collectives across both; then the lanes of its machine.
  const shape = i => {
    const row = rows[events.rank[i]];
    if (is_of_machine(events, i)) return [lane_at(row, events.lane[i]), 0.8 * LANE_HEIGHT];
    const [below, width] = computes(events, i) ? [-0.17, 0.54] : events.opcode[i] !== "Send" ? [0.285, 0.33] : events.payload[i] === "gradient" ? [0.37, 0.16] : [0.2, 0.16];
    return [row.at + below, width];
  };
  // Of a step with one micro-batch that passes layer by layer, layers tell more.
  const number = moves() && run.microbatches === 1 ? events.first_layer : events.microbatch;
  const data = KINDS.map(([kind, color]) => {
    const own = events.rank.map((_, i) => i).filter(i => kind_of(events, i) === kind);
    const bar = own.map(shape);
    const opacity = overlaps() ? own.map(i => events.step[i] ? 0.45 : 1) : 1;
    return {type: "bar", orientation: "h", name: kind, marker: {color, opacity, line: {width: 0}}, y: bar.map(([y]) => y), width: bar.map(([, width]) => width),
            base: own.map(i => events.begin_s[i]), x: own.map(i => events.end_s[i] - events.begin_s[i]), hoverinfo: "text",
            hovertext: own.map(i => {
              const {name, where, layers: which, what} = describe(events, i);
              return lines(events.step[i] ? `${name}, next step` : name, plain(where), which && `layers ${which}`, what, `${seconds(events.begin_s[i])} to ${seconds(events.end_s[i])}: ${seconds(events.end_s[i] - events.begin_s[i])}`);
            }),
            text: events.rank.length > 600 || !COMPUTATIONS.includes(kind) ? undefined : own.map(i => `${number[i]}`), textposition: "inside", insidetextanchor: "middle", textangle: 0};
  }).filter(trace => trace.x.length > 0);
  const names_lanes = rows.length <= 12 && !narrow();
  const ticks = rows.flatMap((row, rank) => [[row.at, plain(rank_name(rank), 22)], ...(names_lanes ? row.lanes.map(lane => [lane_at(row, lane), lane]) : [])]);
  return {data, layout: layout_of({
    height: Math.min(1800, 120 + Math.max(14, Math.min(46, 900 / (end + 1))) * (end + 1)), barmode: "overlay", uniformtext: {minsize: 8, mode: "hide"}, dragmode: "zoom",
    xaxis: {title: {text: since_begin()}, range: [0, until], fixedrange: false},
    yaxis: {tickvals: ticks.map(([at]) => at), ticktext: ticks.map(([, text]) => text), range: [end + 0.6, -0.6], showgrid: false, tickmode: ranks > 70 ? "auto" : "array"}})};
}
// A step that overlaps its neighbours begins before the step before has ended, which is at 0.
const step_begin = () => [run.timeline, run.measured?.timeline].filter(Boolean).flatMap(each => each.events.begin_s).reduce((least, each) => Math.min(least, each), 0);
const overlaps = () => step_begin() < 0;
const since_begin = () => overlaps() ? "seconds since the step before ended" : "seconds since the step began";
const whole_step = () => Math.max(run.first_step_time_s, run.measured?.step_time_s ?? 0);
const timeline = () => timeline_of(run.timeline, whole_step());
const measured = () => timeline_of(run.measured.timeline, whole_step());

const TIERS = [["device", "device memory"], ["host", "machine memory"], ["disk", "disk"]];
const gibibytes = value => value / 2 ** 30;
function memory() {
  const {accent, quiet} = theme();
  const panels = TIERS.map(([tier, name]) => ({name, curves: run.memory.filter(each => each.tier === tier)})).filter(({curves}) => curves.length);
  const measured = run.measured?.memory ?? [];
  const data = [], axes = {}, headings = [], gap = 0.11;
  const share = (1 + gap) / panels.length;
  panels.forEach(({name, curves}, k) => {
    const axis = k ? `${k + 1}` : "", top = 1 - k * share;
    const has = [...new Set(curves.map(each => each.has_bytes))];
    // Many limits would hide the curves, which are then parts of them.
    const is_relative = has.length > 3;
    const scaled = (value, curve) => is_relative ? value / curve.has_bytes : gibibytes(value);
    const highest = Math.max(...curves.map(each => scaled(each.peak_bytes, each)));
    // A limit that is far away would leave no room for the curve; the heading has it.
    const limits = [...new Set(curves.map(each => scaled(each.has_bytes, each)))].filter(limit => limit <= 2.5 * highest);
    curves.forEach((curve, i) => {
      const color = curves.length === 1 ? accent : colour_of_stage(i, curves.length);
      const add = (each, dash, what, more) => data.push({type: "scatter", mode: "lines", xaxis: "x", yaxis: `y${axis}`, x: each.times_s,
        y: each.bytes.map(value => scaled(value, curve)), line: {shape: "hv", color, width: 1.6, dash}, hoverinfo: "text", ...more,
        hovertext: each.bytes.map((value, point) => lines(`${plain(curve.name)}${what}`, `${bytes(value)} of ${bytes(curve.has_bytes)}`, `from ${seconds(each.times_s[point])}`))});
      add(curve, "solid", "", {name: plain(curve.name, 30), showlegend: curves.length > 1 && run.memory.length <= 16});
      const same = measured.find(each => each.name === curve.name);
      if (same) add(same, "dot", ", measured", {name: "measured", showlegend: same === measured[0]});
    });
    limits.forEach(limit => data.push({type: "scatter", mode: "lines", name: "has", xaxis: "x", yaxis: `y${axis}`, x: [step_begin(), whole_step()], y: [limit, limit],
      line: {color: quiet, width: 1, dash: "dash"}, hoverinfo: "skip", showlegend: false}));
    axes[`yaxis${axis}`] = {domain: [top - share + gap, top], range: [0, 1.08 * Math.max(highest, ...limits)], tickformat: is_relative ? ".0%" : undefined};
    headings.push(heading(is_relative ? `${name}, of what each has`
      : `${name}, GiB${curves.length === 1 ? ` (${plain(curves[0].name, 30)})` : ""}; ${has.length === 1 ? `${curves.length > 1 ? "each has" : "has"} ${bytes(has[0])}` : limits.length ? "dashed: what each has" : "each has far more"}`, 0, top));
  });
  return {data, layout: layout_of({height: 90 + 170 * panels.length, margin: {l: 60, r: 16, t: 46, b: 44}, legend: {orientation: "h", y: -0.12 / panels.length - 0.06, yanchor: "top", x: 0},
    xaxis: {title: {text: since_begin()}, range: [0, whole_step()], fixedrange: false, anchor: panels.length > 1 ? `y${panels.length}` : "y"}, ...axes, annotations: headings})};
}

function what_if() {
  const {accent, idle} = theme();
  const below = narrow();
  const rows = run.what_ifs.filter(each => !each.fault);
  const y = rows.map((_, i) => i);
  const relative = time => time === null ? null : time / run.first_step_time_s - 1;
  const bars = (name, key, color) => ({type: "bar", orientation: "h", name, y, x: rows.map(each => relative(each[key])), marker: {color}, text: rows.map(each => change(relative(each[key]))),
    textposition: "auto", cliponaxis: false, hoverinfo: "text", hovertext: rows.map(each => lines(plain(each.change), `${name}: ${seconds(each[key])}, ${change(relative(each[key]))}`))});
  const replanned = rows.some(each => each.planned_anew_step_time_s !== null);
  return {data: [bars("plan kept", "step_time_s", accent), ...(replanned ? [bars("replanned", "planned_anew_step_time_s", idle)] : [])],
          layout: layout_of({height: 70 + (replanned ? 42 : below ? 36 : 28) * rows.length, showlegend: replanned, margin: {l: 60, r: 60, t: 24, b: 44}, bargap: 0.3,
                             xaxis: {title: {text: "step time, change"}, tickformat: ".1%", rangemode: "tozero", nticks: below ? 3 : undefined},
                             yaxis: {tickvals: y, ticktext: rows.map(each => plain(each.change, 56)).map(text => below ? text.replace(" of ", " of<br>") : text),
                                     autorange: "reversed", showgrid: false}})};
}

// ---- Schedules of a cluster ----

// File names without what they have in common.
const schedule_names = (() => {
  const files = (report.schedules ?? []).map(each => each.file);
  const short = files.map(file => file.split("/").at(-1).replace(/\.csv$/, ""));
  return new Set(short).size === short.length ? short : files;
})();
const curve = (i, x, y, text_of, more) => ({type: "scatter", mode: "lines", name: plain(schedule_names[i], 30), x, y, hoverinfo: "text", hovertext: x.map((_, k) => lines(plain(schedule_names[i]), text_of(k))),
  line: {shape: "hv", color: colour_of_stage(i, report.schedules.length), width: 1.8, dash: ["solid", "dash", "dot", "dashdot"][i % 4]}, ...more});
const curves = (data, x, y) => ({data, layout: layout_of({height: 420, showlegend: true, xaxis: {fixedrange: false, ...x}, yaxis: {rangemode: "tozero", ...y}})});

function completion() {
  // Times from minutes to months are told apart on a logarithmic axis only.
  const is_logarithmic = report.schedules.every(({completion: {times_s}}) => times_s[0] > 0);
  return curves(report.schedules.map(({completion: {times_s, fractions}}, i) => curve(i, times_s, fractions, k => `${percent(fractions[k])} of the jobs take at most ${seconds(times_s[k])}`)),
    {title: {text: "completion time, from arrival to end, s"}, ...(is_logarithmic ? {type: "log", dtick: 1, exponentformat: "power"} : {})}, {title: {text: "jobs"}, tickformat: ".0%", range: [0, 1.02]});
}

function population() {
  return curves(report.schedules.map(({population: {times_s, jobs}}, i) => curve(i, times_s, jobs, k => `${counted(jobs[k], "job")} from ${seconds(times_s[k])} on`)),
    {title: {text: "seconds since the first arrival"}, rangemode: "tozero"}, {title: {text: "jobs that have arrived and not ended"}});
}

// ---- Mixes of jobs ----

const colour_of_job = job => colour_of_stage(job, report.mix.jobs.length);
const MIX_KINDS = {compute: "computes", wait: "waits", transfer: "sends"};

/// Rows for devices and then for links; of each job bars for computing and sending, and outlined ones for waiting.
function turns() {
  const {spans, end_s} = report.mix.timeline;
  const used = new Set(spans.row);
  const names = [...report.mix.devices, ...report.mix.links].map(({name}) => name).filter(name => used.has(name));
  const row_of = new Map(names.map((name, i) => [name, i]));
  const waiting = new Set(spans.row.filter((_, i) => spans.kind[i] === "wait"));
  const data = report.mix.jobs.flatMap((job, k) => Object.entries(MIX_KINDS).map(([kind, verb]) => {
    const own = spans.row.map((_, i) => i).filter(i => spans.job[i] === k && spans.kind[i] === kind);
    const is_wait = kind === "wait";
    // On a device computing is above and waiting below, where somebody waits.
    const place = i => !waiting.has(spans.row[i]) ? [0, 0.6] : is_wait ? [0.28 + 0.16 * k / report.mix.jobs.length, 0.16 / report.mix.jobs.length] : [-0.12, 0.56];
    const bar = own.map(place);
    const color = colour_of_job(k);
    return {type: "bar", orientation: "h", name: is_wait ? `${plain(job.name, 24)} waits` : plain(job.name, 24), legendgroup: is_wait ? `${k} waits` : `${k}`,
            showlegend: kind !== "transfer", marker: {color: is_wait ? color.replace("hsl(", "hsla(").replace(")", ", 0.45)") : color, line: {width: 0}},
            y: own.map((i, n) => row_of.get(spans.row[i]) + bar[n][0]), width: bar.map(([, height]) => height), base: own.map(i => spans.begin_s[i]), x: own.map(i => spans.end_s[i] - spans.begin_s[i]),
            hoverinfo: "text", hovertext: own.map(i => lines(`${plain(job.name)} ${verb}: ${plain(spans.row[i])}`, plain(spans.name[i]), `${seconds(spans.begin_s[i])} to ${seconds(spans.end_s[i])}: ${seconds(spans.end_s[i] - spans.begin_s[i])}`))};
  })).filter(trace => trace.x.length > 0);
  return {data, layout: layout_of({
    height: Math.min(1800, 130 + Math.max(16, Math.min(46, 900 / names.length)) * names.length), barmode: "overlay", dragmode: "zoom",
    xaxis: {title: {text: "seconds since the first round began"}, range: [0, end_s], fixedrange: false},
    yaxis: {tickvals: names.map((_, i) => i), ticktext: names.map(name => plain(name, 22)), range: [names.length - 0.4, -0.6], showgrid: false, tickmode: names.length > 70 ? "auto" : "array"}})};
}

function rates() {
  const {jobs} = report.mix;
  const {idle} = theme();
  const y = jobs.map((_, i) => i);
  const bars = (name, key, color, text) => ({type: "bar", orientation: "h", name, y, x: jobs.map(job => job[key]), marker: {color}, text: jobs.map(text), textposition: "auto", textangle: 0, hoverinfo: "text",
    hovertext: jobs.map(job => lines(plain(job.name), `${name}: ${seconds(job[key])}`))});
  return {data: [bars("step alone", "solo_step_time_s", idle, job => seconds(job.solo_step_time_s)),
                 bars("step in the mix", "step_time_s", jobs.map((_, i) => colour_of_job(i)), job => `${seconds(job.step_time_s)}; rate ${percent(job.normalised_rate)}`)],
          layout: layout_of({height: 90 + 52 * jobs.length, showlegend: true, xaxis: {title: {text: "step, s"}, rangemode: "tozero"},
                             yaxis: {tickvals: y, ticktext: jobs.map(job => plain(job.name, 36)), autorange: "reversed", showgrid: false}})};
}

// ---- The page ---------------------------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(name, value);
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

/// A cell is a text, or [number, text] with the number from the JSON.
function table(label, header, rows, current = -1) {
  const cell = (content, tag, is_number) => {
    const [value, text] = Array.isArray(content) ? content : [undefined, content];
    return element(tag, {class: is_number ? "number" : undefined, scope: tag === "th" ? "col" : undefined, "data-value": value ?? undefined}, text);
  };
  const numeric = header.map((_, column) => rows.some(row => Array.isArray(row[column])));
  return element("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label},
    element("table", {}, element("caption", {hidden: ""}, label), element("thead", {}, element("tr", {}, ...header.map((text, column) => cell(text, "th", numeric[column])))),
      element("tbody", {}, ...rows.map((row, i) => element("tr", {"aria-current": i === current ? "true" : undefined}, ...row.map((content, column) => cell(content, "td", numeric[column])))))));
}

const charts = new Map();  // id → function
function chart(id, draw, label, caption) {
  charts.set(id, draw);
  return element("figure", {}, element("div", {class: "chart", id, tabindex: "0", role: "img", "aria-label": label}), caption ? element("figcaption", {}, caption) : null);
}
const fold = (summary, ...content) => element("details", {}, element("summary", {}, summary), ...content);
const section = (id, title, ...content) => element("section", {id, "aria-labelledby": `${id}-title`}, element("h2", {id: `${id}-title`}, title), ...content);

const interval_of = each => each.step_interval_s ? `80\u00a0%: ${each.step_interval_s.map(time => seconds(time)).join(" to ")}` : "";

function comparison_section() {
  const rows = report.runs.map((each, i) => [label_parts[i].allocator + in_parentheses([label_parts[i].file]), each.objective, `${each.schedule}, M\u00a0=\u00a0${each.microbatches}`, each.outcome, [stages_of(each), `${stages_of(each)}`],
    [each.step_time_s, seconds(each.step_time_s) + in_parentheses([interval_of(each)])], [each.step_bound_s, seconds(each.step_bound_s)],
    [each.tokens_per_s, each.tokens_per_s === null ? MISSING : digits(each.tokens_per_s, 4)], [each.mfu_fraction, percent(each.mfu_fraction)],
    [each.bubble_fraction, percent(each.bubble_fraction)], [each.objective_s, seconds(each.objective_s)],
    [each.objective_bound_s, seconds(each.objective_bound_s)], [each.gap_fraction, percent(each.gap_fraction)], [each.peak_memory_bytes, bytes(each.peak_memory_bytes)]]);
  return section("comparison", "Allocators compared",
    report.runs.length > 1 ? chart("comparison-chart", comparison, "Step time, gap and memory of each placement; the table below has the numbers") : null,
    table("Placements", ["placement", "objective", "schedule", "outcome", "stages", "step time", "step bound", "tokens/s", "MFU", "bubble", "objective value", "bound", "gap",
      "fullest device"], rows, report.runs.indexOf(run)));
}

function summary_section() {
  const is_chain = !run.stages.some(row => row.replicas > 1 || row.shards > 1 || row.residence);
  const fact = (name, value, text, note) => element("div", {}, element("dt", {}, name), element("dd", {"data-fact": name, "data-value": value ?? ""}, text, note ? element("small", {}, note) : null));
  const busiest = run.links.reduce((best, link) => link.busy_fraction > (best?.busy_fraction ?? -1) ? link : best, null);
  const used = used_devices().length, all = run.sites.reduce((sum, site) => sum + site.devices.length, 0);
  return section("summary", "Summary", element("dl", {class: "facts"},
    fact("step time", run.step_time_s, seconds(run.step_time_s), "simulated"), fact("step bound", run.step_bound_s, seconds(run.step_bound_s), "no order of its passes takes less"),
    fact("gap", run.gap_fraction, percent(run.gap_fraction), `of ${run.objective === "step" ? "the predicted step" : "the objective"} to ${is_chain ? "the bound of chains" : "its bound"}`),
    fact("fullest device", run.peak_memory_bytes, bytes(run.peak_memory_bytes)),
    ...run.memory.filter(each => each.tier !== "device").slice(0, 2).map(each => fact(`memory of ${cut(each.name, 24)}`, each.peak_bytes, bytes(each.peak_bytes), `of ${bytes(each.has_bytes)}`)),
    fact("devices used", used, `${used} of ${all}`), busiest ? fact("busiest link", busiest.busy_fraction, percent(busiest.busy_fraction), cut(busiest.name, 40)) : null,
    run.step_interval_s ? fact("interval", null, interval_of(run), run.interval_because.join("; ")) : null,
    run.measured ? fact("measured step", run.measured.step_time_s, seconds(run.measured.step_time_s), `step ${run.measured.step} of ${cut(run.measured.file, 40)}`) : null));
}

function map_section() {
  const syncs = run.connections.some(each => synced(each) > 0);
  const connections = run.connections.map(each => [`${run.sites[each.a].name} ↔ ${run.sites[each.b].name}`, [each.a_to_b_bytes, bytes(each.a_to_b_bytes)],
    [each.b_to_a_bytes, bytes(each.b_to_a_bytes)], ...(syncs ? [[synced(each), bytes(synced(each))]] : []), [each.busiest_link?.busy_fraction ?? null, percent(each.busiest_link?.busy_fraction)], each.busiest_link?.name ?? MISSING,
    [each.bandwidth_bytes_per_s, bandwidth(each.bandwidth_bytes_per_s)], [each.latency_s, seconds(each.latency_s)]]);
  const links = [...run.links].sort((a, b) => b.busy_fraction - a.busy_fraction).map(link => [link.name, [link.bytes, bytes(link.bytes)], [link.busy_fraction, percent(link.busy_fraction)]]);
  return section("map", "Cluster", chart("map-chart", map, `Map of ${counted(run.sites.length, "site")}, their devices and the load of their links; the tables below have the numbers`,
    "Dots are devices, larger ones faster, coloured and numbered by stage; grey ones are idle. Lines are links, coloured by the fraction of the step with a transfer in progress."),
    connections.length ? table("Between sites", ["sites", "there, per step", "back, per step", ...(syncs ? ["sums of gradients"] : []), "busy", "busiest link", "bandwidth", "latency"], connections) : null,
    fold(`${links.length === 1 ? "1 link" : `All ${links.length} links`} that carried data`, table("Links", ["link", "payload per step", "busy"], links)));
}

function plan_section() {
  const replicated = run.stages.some(stage => stage.replicas > 1);
  const where = stage => !moves() ? [] : stage.residence ? [[stage.resident_layers, stay(stage)], elsewhere(stage), places_of(stage), stage.residence.overlap ?? MISSING]
    : [[stage.resident_layers, "all"], MISSING, MISSING, MISSING];
  const rows = run.stages.map((stage, i) => [[i, stage_name(stage)], stage.device, run.sites[stage.site].name, layers(stage), ...where(stage),
    ...(replicated ? [[stage.microbatches, `${stage.microbatches}`]] : []), [stage.speed_flops_per_s, speed(stage.speed_flops_per_s)],
    [stage.peak_memory_bytes, bytes(stage.peak_memory_bytes)], [stage.memory_bytes, bytes(stage.memory_bytes)], [stage.compute_s, seconds(stage.compute_s)], [stage.send_s, seconds(stage.send_s)],
    [stage.idle_s, seconds(stage.idle_s)]]);
  return section("plan", "Plan", chart("plan-chart", plan, `Layers, compute time, speed and memory of ${counted(stages_of(run), "stage")}; the table below has the numbers`,
    `Stages in the order of the pipeline${replicated ? ", each with its replicas" : ""}. Outlines are the memory that a device has.${
      used_devices().length < run.stages.length ? " Memory is that of a device with all its stages." : ""}`),
    fold("All stages", table("Stages", ["stage", "device", "site", "layers", ...(moves() ? ["stay", "in the machine", "places", "updates"] : []), ...(replicated ? ["micro-batches"] : []), "speed", "memory used", "of", "computes", "sends", "idle"], rows)));
}

const MOST_ROWS = 500;
function instruction_table(recorded) {
  const {events} = recorded;
  const rows = events.rank.map((_, i) => i).filter(i => events.step[i] === 0).slice(0, MOST_ROWS).map(i => {
    const {name, where, layers: which, what} = describe(events, i);
    return [name, where, which, what, [events.begin_s[i], seconds(events.begin_s[i])], [events.end_s[i], seconds(events.end_s[i])]];
  });
  const details = fold(rows.length < recorded.instructions ? `The first ${rows.length} instructions` : `All ${rows.length} instructions`);
  details.classList.add("long");
  details.addEventListener("toggle", () => details.append(table("Instructions", ["instruction", "where", "layers", "work or payload", "begins", "ends"], rows)), {once: true});
  return details;
}

function tools_of(id) {
  const chart_of = () => document.getElementById(id);
  const range = () => chart_of().layout.xaxis.range;
  const set = (from, to) => {
    const end = whole_step(), width = Math.min(to - from, 1.05 * end), begin = Math.max(step_begin() - 0.02 * end, Math.min(from, 1.02 * end - width));
    Plotly.relayout(chart_of(), {"xaxis.range": [begin, begin + width]});
  };
  const zoom = factor => { const [from, to] = range(), middle = (from + to) / 2, half = (to - from) / 2 * factor; set(middle - half, middle + half); };
  const move = part => { const [from, to] = range(); set(from + part * (to - from), to + part * (to - from)); };
  const actions = {"+": ["zoom in", () => zoom(0.5)], "−": ["zoom out", () => zoom(2)], "◀": ["earlier", () => move(-0.25)], "▶": ["later", () => move(0.25)],
                   "whole step": ["whole step", () => set(0, whole_step())]};
  const keys = {"+": "+", "=": "+", "-": "−", ArrowLeft: "◀", ArrowRight: "▶", 0: "whole step", Home: "whole step"};
  queueMicrotask(() => chart_of().addEventListener("keydown", event => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[keys[event.key]][1]();
  }));
  return element("div", {class: "tools", role: "group", "aria-label": "Zoom"}, ...Object.entries(actions).map(([text, [name, act]]) => {
    const button = element("button", {type: "button", "aria-label": name, title: name}, text);
    button.addEventListener("click", act);
    return button;
  }), element("span", {class: "quiet"}, "or drag; with the chart in focus: + − ← → 0"));
}

function timeline_section() {
  const {instructions, events} = run.timeline;
  const shown = events.rank.length < instructions
    ? `Shows the first ${events.rank.length} of ${instructions} instructions; isobar simulate --trace writes all.` : `${instructions} instructions.`;
  return section("timeline", "One step", tools_of("timeline-chart"),
    chart("timeline-chart", timeline, "Timeline of the simulated step, a row for each device; the table below lists its instructions",
      `Simulated. ${shown} Each device computes in its upper row and sends below it; a transfer is drawn at its sender.${
        moves() ? " Below are copies between device and machine, in and out, the machine's updates and accesses to its disk." : ""}${
        overlaps() ? " Steps overlap: the next one is fainter, and the part of this one before 0 is further left." : ""}`),
    instruction_table(run.timeline),
    ...(run.measured ? [tools_of("measured-chart"), chart("measured-chart", measured, "Timeline of the measured step", `Measured: step ${run.measured.step} of ${run.measured.file}.`),
      instruction_table(run.measured.timeline)] : []));
}

function memory_section() {
  if (!run.memory.length) return null;
  const peak_of = name => run.measured?.memory.find(each => each.name === name)?.peak_bytes ?? null;
  const rows = run.memory.map(each => [each.name, each.tier, [each.peak_bytes, bytes(each.peak_bytes)], ...(run.measured ? [[peak_of(each.name), bytes(peak_of(each.name))]] : []),
    [each.has_bytes, bytes(each.has_bytes)]]);
  return section("memory", "Memory over the step", chart("memory-chart", memory, `Memory of ${counted(run.memory.length, "place")} over the step; the table below has the most that is used`,
    `What is held throughout, and what passes: parameters, gradients, optimizer state and activations.${run.measured ? " Dotted: at the times of the measured step." : ""}`),
    fold("All memories", table("Memories", ["memory", "tier", "most used", ...(run.measured ? ["measured"] : []), "of"], rows)));
}

function step_text() {
  const {parts, in_flight_limits, saved_without_latency_s} = run.explanation.critical_path;
  const fraction_of = kind => percent(parts.filter(each => each.kind === kind).reduce((sum, each) => sum + each.step_fraction, 0));
  const part_text = each => each.kind === "compute" ? `compute of ${each.from} (${percent(each.step_fraction)})`
    : `${each.kind === "data" ? "bytes" : "latency"} from ${each.from} to ${each.to} (${percent(each.step_fraction)})`;
  const limits = in_flight_limits.length ? ` ${in_flight_limits[0].device} is idle for ${seconds(in_flight_limits[0].idle_s)} although a micro-batch has arrived, because it holds at most ${
    in_flight_limits[0].microbatches_in_flight}; one more on it and on every stage before it would save ${seconds(in_flight_limits[0].saved_by_one_more_s)}.` : "";
  const latency = parts.some(each => each.kind === "latency") ? ` Without latency, this placement would save ${seconds(saved_without_latency_s)}.` : "";
  return `The predicted step waits for compute ${fraction_of("compute")}, bytes ${fraction_of("data")}, latency ${fraction_of("latency")}; most of all for ${
    parts.slice(0, 3).map(part_text).join(", ")}.${limits}${latency}`;
}

function bound_text() {
  if (!run.explanation) return "";
  const {bottleneck, full_memory, critical_path} = run.explanation;
  const where = bottleneck.stage === null ? `the input from ${bottleneck.device}` : `stage ${bottleneck.stage} on ${bottleneck.device}`;
  const by = bottleneck.binds === "compute" ? `by its compute, ${seconds(bottleneck.compute_s)} per micro-batch` : `by its transfers over ${bottleneck.links.slice(0, 3).join(", ")}`;
  const near = bottleneck.other_stages_within_1_percent;
  const full = full_memory.length ? ` Memory is full on ${full_memory.slice(0, 3).map(each => each.device).join(", ")}${full_memory.length > 3 ? ` and ${full_memory.length - 3} more` : ""}.` : "";
  if (critical_path) return step_text() + full;
  return `By the formula (objective ${run.objective}, communication ${run.communication}), the largest stage cost is that of ${where}: ${seconds(bottleneck.cost_s)}, ${by}${
    near ? `; ${near} other stage${near > 1 ? "s are" : " is"} within 1 %` : ""}.${full}`;
}

function bounds_section() {
  const relative = time => time === null ? null : time / run.first_step_time_s - 1;
  const replanned = run.what_ifs.some(each => each.planned_anew_step_time_s !== null);
  const cells = time => [[time, seconds(time)], [relative(time), change(relative(time))]];
  const rows = run.what_ifs.map(each => [each.change, ...cells(each.step_time_s), ...(replanned ? cells(each.planned_anew_step_time_s) : []), each.fault ?? each.note ?? ""]);
  const best = run.what_ifs.find(each => !each.fault);
  const best_time = best ? Math.min(...[best.step_time_s, best.planned_anew_step_time_s].filter(time => time !== null)) : null;
  const answer = !best || best_time >= run.first_step_time_s * (1 - 5e-5) ? "None of the changes tried makes the step shorter."
    : `Of the changes tried, ${best.change} is worth most: ${change(relative(best_time))}.`;
  const better_kept = run.what_ifs.filter(each => each.note).length;
  const warning = better_kept ? ` For ${better_kept} of the ${run.what_ifs.length} changes the kept plan is better than the new one; the table says by how much.` : "";
  const bound = bound_text();
  return section("bounds", "What bounds the step", bound ? element("p", {}, bound) : null, element("p", {id: "next-change"}, answer + warning),
    chart("bounds-chart", what_if, "What each change of the platform does to the step time; the table below has the numbers",
      `Each change was simulated with the same plan; it can also lengthen the step, where transfers then share links with others${
        replanned ? "; the lighter bars are new plans by the same allocator with its default seed and limits" : ""}.`),
    table("Changes", ["change", "step time, plan kept", "change", ...(replanned ? ["step time, replanned", "change"] : []), ""], rows));
}

function schedule_sections() {
  const rows = report.schedules.map((each, i) => [schedule_names[i], [each.jobs, `${each.jobs}`], ...["mean_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "mean_waiting_s", "longest_wait_s"].map(key => [each[key], seconds(each[key])])]);
  return [
    section("schedules", "Schedules", table("Schedules", ["schedule", "jobs", "mean completion", "median", "p99", "makespan", "mean wait", "longest wait"], rows)),
    section("completion", "Completion times", chart("completion-chart", completion, "Distribution of completion times of each schedule; the table above has the numbers",
      "Of each schedule, the part of its jobs that take at most a time. Further left and up is better.")),
    section("population", "Jobs in the system", chart("population-chart", population, "Number of jobs in the system over time, of each schedule", "Jobs that have arrived and not ended."))];
}

function mix_sections() {
  const {mix} = report, {timeline, sharing, binds} = mix;
  const fact = (name, value, text, note) => element("div", {}, element("dt", {}, name), element("dd", {"data-fact": name, "data-value": value}, text, note ? element("small", {}, note) : null));
  const number = (value, text) => [value, text];
  const jobs = mix.jobs.map(job => [job.name, number(job.steps_per_round, `${job.steps_per_round}`), number(job.step_time_s, seconds(job.step_time_s)), number(job.solo_step_time_s, seconds(job.solo_step_time_s)),
    number(job.normalised_rate, percent(job.normalised_rate)), number(job.longest_wait_s, seconds(job.longest_wait_s)), number(Math.max(...Object.values(job.peak_memory_bytes)), bytes(Math.max(...Object.values(job.peak_memory_bytes))))]);
  const devices = mix.devices.map(device => [device.name, number(device.compute_s, seconds(device.compute_s)), number(device.waiting_s, seconds(device.waiting_s)), number(device.busy_fraction, percent(device.busy_fraction)),
    number(device.peak_memory_bytes, bytes(device.peak_memory_bytes))]);
  const links = mix.links.map(link => [link.name, number(link.bytes, bytes(link.bytes)), number(link.busy_fraction, percent(link.busy_fraction))]);
  const shown = timeline.spans.row.length < timeline.events ? ` Shows the first ${timeline.spans.row.length} of ${timeline.events} bars.` : "";
  return [
    section("summary", "Summary", element("dl", {class: "facts"},
      fact("round", mix.round_time_s, seconds(mix.round_time_s), mix.rounds > 1 ? `mean of ${counted(mix.rounds - 1, "round")}, without the first` : "from rest"),
      fact("bound", mix.bound_s, seconds(mix.bound_s), `${binds.kind} ${cut(binds.name, 40)} takes that long`), fact("gap", mix.gap_fraction, percent(mix.gap_fraction), "of the round to its bound"),
      fact("one after the other", mix.serial_s, seconds(mix.serial_s), "the jobs' steps alone"), fact("saved", mix.saved_s, seconds(mix.saved_s), `per round; speed-up ${digits(mix.speedup, 4)}`)),
      element("p", {class: "quiet"}, `Turns ${sharing.discipline}, handed over after each ${sharing.hand_over}; links ${sharing.links}.`)),
    section("turns", "Turns", chart("turns-chart", turns, "Timeline of the mix: a row for each device and each link, a colour for each job; the tables below have the numbers",
      `The first ${counted(timeline.rounds, "round")}. Paler bars below a device are jobs that wait for it. A link is drawn as used while the bytes of a transfer leave.${shown}`)),
    section("jobs", "Jobs", chart("rates-chart", rates, "Step of each job alone and in the mix; the table below has the numbers", "The rate is that in the mix over that alone."),
      table("Jobs", ["job", "steps per round", "step", "alone", "rate", "longest wait", "memory"], jobs)),
    section("devices", "Devices", table("Devices", ["device", "computes per round", "waited for", "busy", "memory"], devices), links.length ? table("Links", ["link", "payload per round", "busy"], links) : null)];
}

const CONFIG = {displayModeBar: false, responsive: true, doubleClick: "reset"};
async function draw_all() {
  for (const [id, draw] of charts) {
    const {data, layout} = draw();
    if (printing) layout.width = 680;
    await Plotly.react(document.getElementById(id), data, layout, CONFIG);
  }
}

function choice() {
  if (report.runs.length < 2) return null;
  const select = element("select", {id: "run"}, ...labels.map((label, i) => element("option", {value: i}, label)));
  select.value = report.runs.indexOf(run);
  select.addEventListener("change", () => { run = report.runs[select.value]; build(); document.getElementById("run").focus(); });
  return element("div", {class: "choice"}, element("label", {for: "run"}, "Placement shown below: "), select, element("span", {class: "quiet"}, ` ${run.file}`));
}

function build() {
  charts.clear();
  const sections = report.schedules ? schedule_sections() : report.mix ? mix_sections() : [comparison_section(), choice(), summary_section(), map_section(), plan_section(), timeline_section(), memory_section(), run.what_ifs.length ? bounds_section() : null].filter(Boolean);
  document.getElementById("main").replaceChildren(...sections);
  document.getElementById("sections").replaceChildren(...sections.filter(each => each.tagName === "SECTION").map(each =>
    element("li", {}, element("a", {href: `#${each.id}`}, each.querySelector("h2").textContent))));
  return draw_all();
}

// Hexadecimal digits need no escaping in HTML.
async function draw_figure() {
  const {data, layout} = {comparison, plan, map, timeline, memory, completion, population, turns, rates}[report.figure]();
  const size = {width: 900, height: layout.height};
  const url = await Plotly.toImage({data, layout: {...layout, ...size}}, {format: "svg", ...size});
  const svg = new TextEncoder().encode(decodeURIComponent(url.slice(url.indexOf(",") + 1)));
  const figure = document.createElement("pre");
  figure.id = "figure";
  figure.textContent = Array.from(svg, byte => byte.toString(16).padStart(2, "0")).join("");
  document.documentElement.replaceChildren(figure);
}

function describe_page() {
  const set = (id, text) => { document.getElementById(id).textContent = text; };
  if (report.mix) {
    document.title = `${report.mix.jobs.map(job => job.name).join(", ")} on ${report.mix.platform.name}`;
    set("title", "Mix of jobs");
    set("about", document.title);
    set("provenance", `isobar ${report.isobar_version}, SimGrid ${report.mix.simgrid_version}. Platform ${report.mix.platform.hash}.`);
    return;
  }
  if (report.schedules) {
    document.title = "Schedules of jobs";
    set("title", document.title);
    set("about", schedule_names.join(", "));
    set("provenance", `isobar ${report.isobar_version}.`);
    return;
  }
  document.title = `${report.workload.name} on ${report.platform.name}`;
  document.getElementById("about").textContent = `${report.workload.name} on ${report.platform.name}${report.profile ? `, times measured in ${report.profile.name}` : ""}`;
  document.getElementById("provenance").textContent = `isobar ${report.isobar_version}, SimGrid ${report.simgrid_version} (${
    Object.entries(report.network).map(([option, value]) => `${option} ${value}`).join(", ")}). Platform ${report.platform.hash}, workload ${report.workload.hash}.`;
}

function start() {
  if (report.figure !== undefined) {
    let state = 1;  // Plotly numbers its clip paths at random; figures must not differ between runs
    Math.random = () => (state = state * 48271 % 2147483647) / 2147483647;
    return draw_figure();
  }
  describe_page();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw_all);
  matchMedia("(max-width: 639px)").addEventListener("change", draw_all);
  const opened = [];
  addEventListener("beforeprint", () => {
    printing = true;
    for (const each of document.querySelectorAll("details:not(.long):not([open])")) { each.open = true; opened.push(each); }
    draw_all();
  });
  addEventListener("afterprint", () => {
    printing = false;
    for (const each of opened.splice(0)) each.open = false;
    draw_all();
  });
  return build();
}

start().then(() => { document.documentElement.dataset.drawn = "true"; });
})();
