// Draws each chart of the page with uPlot, in the colors of the style, which dark mode changes.
const plots = [];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (v) => {
  const size = Math.abs(v);
  for (const [factor, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= factor) return +(v / factor).toPrecision(4) + prefix;
  return String(+v.toPrecision(4));
};
const height = (chart) => (chart.wide ? 320 : 190);

function range(low, high, fromZero) {
  if (low === null || high === null) return [0, 1];
  if (fromZero) low = Math.min(0, low);
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) {
    const half = 0.5 * Math.abs(low) || 0.5;
    return [low - half, high + half];
  }
  const room = 0.06 * (high - low);
  return [low === 0 ? 0 : low - room, high + room];
}

function mark(chart) {
  return (plot) => {
    if (chart.marked_x === null) return;
    const { ctx, bbox } = plot, x = plot.valToPos(chart.marked_x, "x", true);
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    const end = x + 6 * ratio + ctx.measureText(chart.mark).width;
    const left = end > bbox.left + bbox.width;
    ctx.strokeStyle = ctx.fillStyle = style("--text");
    ctx.globalAlpha = 0.6;
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.textAlign = left ? "right" : "left";
    ctx.fillText(chart.mark, x + (left ? -6 : 6) * ratio, bbox.top - 5 * ratio);
    ctx.restore();
  };
}

function axis(more) {
  const font = "11px system-ui, sans-serif";
  return { stroke: () => style("--soft"), grid: { stroke: () => style("--rule"), width: 1 },
    ticks: { show: false }, font, labelFont: font, labelSize: 18, ...more };
}

// Names of bars, leaving out some if they would overlap.
function fitting(plot, names) {
  const longest = Math.max(...names.map((name) => name.length));
  const step = Math.ceil((names.length * (7 * longest + 6)) / (plot.width - 70));
  return names.map((name, i) => (i % step ? null : name));
}

function draw(card) {
  const chart = JSON.parse(card.querySelector("script").textContent);
  const named = chart.x_names.length > 0;
  const xText = (v) => (named ? chart.x_names[v] ?? "" : short(v));
  const xRange = (plot, low, high) => {
    if (low === null) return [0, 1];
    if (chart.bars || named) return [low - 0.6, high + 0.6];
    return chart.x_from_zero ? [0, high || 1] : range(low, high, false);
  };
  const named_below = chart.names.length > 20;
  const below = document.createElement("p");
  const focus = (plot, i) => {
    below.textContent = i ? chart.names[i - 1] : "Point at a line.";
  };
  const few = chart.x.length <= 60;
  // Without a cursor, the legend has the last value of curves, and nothing in other charts.
  const last = (column) =>
    chart.x_label === "step" ? column.findLast((v) => v !== null) : null;
  const text = (v) => (v === null || v === undefined ? "" : String(+v.toPrecision(5)));
  const series = chart.names.map((name, i) => ({
    label: name, scale: "y", spanGaps: true, width: chart.names.length > 20 ? 1 : 2,
    stroke: () => style(`--c${chart.colors[i]}`),
    fill: chart.bars ? () => style(`--c${chart.colors[i]}`) + "aa" : undefined,
    paths: chart.bars ? uPlot.paths.bars({ size: [0.7, 60] }) : undefined,
    points: { show: few && !chart.bars, size: 5 },
    value: (plot, v, _, at) => text(at === null ? last(chart.columns[i]) : v),
  }));
  const plot = new uPlot({
    width: card.clientWidth, height: height(chart), padding: [18, 14, 0, 0],
    cursor: { y: false, focus: { prox: 24 } }, focus: { alpha: 0.25 },
    legend: { show: !named_below },
    scales: { x: { time: false, range: xRange },
      y: { range: (plot, low, high) => range(low, high, chart.from_zero) } },
    axes: [
      axis({ label: chart.x_label, size: 30, 
        values: (plot, splits) =>
          chart.bars && named ? fitting(plot, splits.map(xText)) : splits.map(xText),
        splits: named ? () => chart.x : undefined }),
      axis({ size: 56, values: (plot, s) => s.map(short) }),
    ],
    series: [{ label: chart.x_label, value: (plot, v) => (v === null ? "" : xText(v)) }, ...series],
    hooks: { draw: [mark(chart)], setSeries: named_below ? [focus] : [] },
  }, [chart.x, ...chart.columns], card);
  if (named_below) { focus(plot, null); card.append(below); }
  plots.push([plot, card, chart]);
}

document.querySelectorAll(".plot").forEach(draw);
const resize = () => plots.forEach(([plot, card, chart]) =>
  plot.setSize({ width: card.clientWidth, height: height(chart) }));
addEventListener("resize", resize);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  plots.forEach(([plot]) => plot.redraw()));
