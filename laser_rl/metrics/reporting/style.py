"""How the page looks: light or dark as the reader's system is, one column on a phone, white on paper."""

# Paul Tol's "muted" scheme, told apart with every kind of colour blindness; made darker on white, lighter on black, until
# a line has at least three times the contrast that WCAG asks of graphics. `tests/metrics/test_report_page.py` computes it.
LIGHT = {
    "page": "#ffffff", "ink": "#1b1f24", "soft": "#57606a", "rule": "#d0d7de", "panel": "#f6f8fa", "none": "#e4e7eb",
    "warn": "#7a2e00", "warn-page": "#fff4e5", "fine": "#1a5c2e", "fine-page": "#edf7ef", "link": "#0550ae", "best": "#e8f3ea",
    "c0": "#332288", "c1": "#b8475b", "c2": "#2a8577", "c3": "#7a7a1f", "c4": "#3f83ad", "c5": "#882255", "c6": "#117733",
    "c7": "#93701a", "c8": "#aa4499", "cx": "#3d444d",
}  # fmt: skip
DARK = {
    "page": "#0f1419", "ink": "#e6edf3", "soft": "#a3adb8", "rule": "#333c47", "panel": "#171e26", "none": "#2b333d",
    "warn": "#ffc58f", "warn-page": "#33210f", "fine": "#a5e0b3", "fine-page": "#12291a", "link": "#79b8ff", "best": "#16301f",
    "c0": "#9d8cf0", "c1": "#e58a99", "c2": "#5cc7b7", "c3": "#c5c55a", "c4": "#8ccff0", "c5": "#d674a6", "c6": "#56b877",
    "c7": "#e0cf7c", "c8": "#d182c5", "cx": "#c3ccd5",
}  # fmt: skip


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_SERIES = "".join(f".c{n}{{--c:var(--c{n})}}" for n in [*range(9), "x"])

STYLE = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
{_SERIES}
* {{ box-sizing: border-box; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 1rem 1rem 3rem; background: var(--page);
  color: var(--ink);
  overflow-wrap: anywhere; }}
h1 {{ font-size: 1.7rem; line-height: 1.2; margin: 1rem 0 .3rem; }}
h2 {{ font-size: 1.3rem; margin: 2.2rem 0 .6rem; padding-top: .5rem; border-top: 1px solid var(--rule); }}
h3 {{ font-size: 1.08rem; margin: 1.6rem 0 .5rem; }}
.lead {{ color: var(--soft); margin: 0 0 .5rem; }}
.small {{ font-size: .84rem; color: var(--soft); margin: .35rem 0 1rem; max-width: 46rem; }}
a {{ color: var(--link); }} nav ul {{ padding-left: 1.2rem; margin: .5rem 0; }}
.scroll {{ overflow-x: auto; margin: .4rem 0; }} .scroll:focus-visible, pre:focus-visible {{ outline: 2px solid var(--link); }}
table {{ border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; font-weight: 600; padding: .3rem 0; }}
th, td {{ border-bottom: 1px solid var(--rule); padding: .22rem 1rem .22rem 0; text-align: left; vertical-align: top;
  overflow-wrap: normal; }}
td {{ max-width: 22rem; }} .scroll:not(.pairs) table {{ width: max-content; }}
thead th {{ color: var(--soft); font-weight: 600; vertical-align: bottom; }} .num {{ text-align: right; white-space: nowrap; }}
.best td {{ background: var(--best); font-weight: 600; }}
.pairs table {{ min-width: min(100%, 24rem); }} .pairs th {{ font-weight: 400; }}
.pairs td {{ text-align: right; overflow-wrap: anywhere; padding-right: .3rem; }}
pre {{ background: var(--panel); padding: .8rem; overflow-x: auto; font-size: .84rem; overflow-wrap: normal; border-radius: 4px; }}
.notice {{ padding: .55rem .8rem; border-left: 4px solid var(--rule); background: var(--panel); margin: .5rem 0; border-radius: 2px; }}
.notice.warning {{ color: var(--warn); background: var(--warn-page); border-color: var(--warn); }}
.notice.fine {{ color: var(--fine); background: var(--fine-page); border-color: var(--fine); }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 28rem), 1fr)); gap: 1.2rem 1.6rem; margin: .8rem 0; }}
figure {{ margin: 0; min-width: 0; }} figcaption {{ font-weight: 600; font-size: .95rem; margin-bottom: .2rem; }}
.movie {{ margin: .8rem 0; }} .movie video, .movie img {{ max-width: 100%; border-radius: 4px; background: #000; }}
svg {{ display: block; width: 100%; height: auto; font: 12.5px system-ui, sans-serif; fill: var(--ink); }} svg svg {{ overflow: hidden; }}
.grid {{ stroke: var(--rule); stroke-width: .8; }} .axis {{ stroke: var(--soft); }} .name {{ fill: var(--soft); }}
.end {{ text-anchor: end; }} .mid {{ text-anchor: middle; }} .none {{ fill: var(--none); }}
text.fill {{ fill: var(--c); font-weight: 700; }}
.line {{ fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }} .faint {{ stroke-width: 1; opacity: .55; }}
.thick {{ stroke-width: 3; }} .band {{ fill: var(--c); opacity: .2; }} .dot {{ fill: var(--c); }}
.area {{ fill: var(--c); stroke: var(--page); stroke-width: .6; }} .life {{ stroke: var(--c); stroke-width: 6; }}
.d1 {{ stroke-dasharray: 7 3; }} .d2 {{ stroke-dasharray: 2 2.5; }} .d3 {{ stroke-dasharray: 7 2.5 2 2.5; }}
.mark {{ stroke: var(--warn); stroke-width: 1.3; stroke-dasharray: 2 3; }} .arrow {{ stroke: var(--ink); stroke-width: 1; }}
.tip {{ fill: var(--ink); }}
.legend {{ display: flex; flex-wrap: wrap; gap: 0 .7rem; font-size: .82rem; color: var(--soft); }}
.legend ul {{ display: flex; flex-wrap: wrap; gap: .05rem .9rem; margin: 0; padding: 0; list-style: none; color: var(--ink); }}
.key {{ display: inline-block; width: 1.3rem; height: 0; margin-right: .35rem; border-top: 3px solid var(--c); vertical-align: .25em; }}
.key.d1, .key.d3 {{ border-top-style: dashed; }} .key.d2 {{ border-top-style: dotted; }} .key.thick {{ border-top-width: 5px; }}
.key.dots {{ width: 0; border: 4px solid var(--c); border-radius: 50%; }} .key.faint {{ opacity: .6; }}
.key.area {{ border-top-width: 9px; vertical-align: 0; }}
.key, svg, .notice, .best td {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
@media (max-width: 30rem) {{ body {{ padding: .5rem .75rem 2rem; font-size: 15px; }} th, td {{ padding-right: .7rem; }}
svg {{ font-size: 14.5px; }} }}
@media print {{
  :root {{ color-scheme: light; {_variables(LIGHT)} }}
  body {{ max-width: none; font-size: 10.5pt; padding: 0; }} .scroll, pre {{ overflow: visible; }} pre {{ white-space: pre-wrap; }}
  figure, tr, .notice {{ break-inside: avoid; }} h2, h3 {{ break-after: avoid; }} nav {{ display: none; }}
}}
"""
