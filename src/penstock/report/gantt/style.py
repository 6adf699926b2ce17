"""What the page of a simulation adds to the style of reports: bands beside each other's times, and colours of kinds."""

LOOKS = 10
"""Colours of kinds; further kinds take them again."""

_LIGHT = (
    "#3a6bcb", "#14968a", "#d08a22", "#9a62b4", "#5f7f95", "#4d7d48", "#b0789a", "#8a8a2e", "#b5534a", "#7a6a5a",
)  # fmt: skip
_DARK = (
    "#6f9df0", "#35b0a0", "#dd9a3c", "#b884cf", "#8fb0c6", "#7fb378", "#d79cbd", "#bcbc5a", "#e0837a", "#ad9c8a",
)  # fmt: skip


def _variables(colours: tuple[str, ...], path: str, heat: str) -> str:
    return "".join(f"--k{n}: {colour}; " for n, colour in enumerate(colours)) + f"--path: {path}; --heat: {heat};"


_DARK_VARIABLES = _variables(_DARK, "#ffffff", "#f08a5d")

STYLE = (
    f"""
:root {{ {_variables(_LIGHT, "#101010", "#b8401f")} }}
@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {_DARK_VARIABLES} }} }}
@media screen {{ :root[data-theme="dark"] {{ {_DARK_VARIABLES} }} }}
{"".join(f".k{n} {{ --look: var(--k{n}); }} " for n in range(LOOKS))}
"""
    + """
main { max-width: 1560px; }
.chart { touch-action: pan-y; user-select: none; -webkit-user-select: none; }
.band { position: relative; margin-left: var(--side); border-bottom: 1px solid var(--line); }
.band.axis { position: sticky; top: 0; z-index: 2; height: 42px; background: var(--card); cursor: ew-resize; }
.band canvas { position: absolute; inset: 0; width: 100%; height: 100%; cursor: grab; }
.band.axis canvas { cursor: ew-resize; }
.moving canvas { cursor: grabbing !important; }
.side { position: absolute; right: 100%; width: var(--side); padding-right: 10px; overflow: hidden; color: var(--soft);
  font-size: 11px; line-height: 12px; text-align: right; text-overflow: ellipsis; white-space: nowrap; }
.side.machine { top: 4px; padding-right: 0; text-align: left; color: var(--ink); font-size: 12px; font-weight: 600;
  width: calc(var(--side) - var(--lane) + 8px); right: calc(100% + var(--lane) - 8px); }
.band > .side:not(.machine) { width: var(--lane); }
.band > .side.whole, .links .band > .side { width: var(--side); }
.tools { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 16px; margin: 0 0 10px; font-size: 13px;
  color: var(--soft); }
.tools button { min-width: 32px; padding: 4px 10px; border: 1px solid var(--line); border-radius: 8px;
  color: var(--ink); background: var(--track); font: inherit; cursor: pointer; }
.tools .buttons { display: flex; gap: 4px; margin-left: auto; }
.mark::before { content: ""; display: inline-block; width: 12px; height: 8px; margin-right: 7px; border-radius: 2px;
  border: 2px solid var(--path); }
.scale { display: inline-block; width: 90px; height: 9px; margin: 0 6px; border-radius: 2px;
  background: linear-gradient(90deg, var(--track), var(--heat)); }
@media (max-width: 700px) {
  /* Names of machines and links stand above their bands: beside them there is no room. */
  .chart { --side: clamp(84px, var(--lane), 110px) !important; }
  .band:not(.axis):not(.chain) { margin-top: 18px; }
  .side.machine { top: -15px; right: auto; left: calc(-1 * var(--side)); width: calc(100% + var(--side)); }
  .chart.links { --side: 60px !important; }
  .links .band:not(.axis) { margin-left: 0; }
  .links .band:not(.axis) > .side { top: -14px !important; right: auto; left: 0; width: 100%; text-align: left; }
}
"""
)
