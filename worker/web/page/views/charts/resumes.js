// Marks in a chart where the training resumed after an interruption.

/** Draw a line with its label at each place, once the curves are drawn. */
export function drawResumes(plot, resumes, colour, font) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.font = font.replace(/^11px/, `${11 * devicePixelRatio}px`);
  for (const { x, label } of resumes) {
    const at = Math.round(plot.valToPos(x, "x", true));
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    const isLeft = at < bbox.left + bbox.width / 2;
    ctx.textAlign = isLeft ? "left" : "right";
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(label, at + (isLeft ? 5 : -5) * devicePixelRatio, bbox.top - 6 * devicePixelRatio);
  }
  ctx.restore();
}
