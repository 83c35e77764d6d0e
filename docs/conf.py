"""Builds the site: `make docs`."""

import os
import re
import zlib
from pathlib import Path

import jupytext
import numpy.typing
from docutils import nodes
from jupyter_cache import get_cache
from math_core import LatexToMathML
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).parent.parent
SMOKE = bool(os.environ.get("FEASIBLY_SMOKE"))  # few steps, for tests
CARDS = ROOT / "priors" / "feasibly_priors"
PAGES, NOTEBOOKS = ROOT / "docs" / "pages", ROOT / "docs" / "_build" / "notebooks"
LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\((?!https?:)([^)\s]+)\)")

# of the pages' kernels, which run in empty folders, on one core
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"
KERNEL = ROOT / "docs" / "kernel"
os.environ["PYTHONPATH"] = os.pathsep.join(
    (str(PAGES), str(KERNEL), os.environ.get("PYTHONPATH", ""))
)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CI", "true")  # shows no progress

project = "feasibly"
author = "The feasibly developers"
project_copyright = "the feasibly developers"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "kernel", "weights", "pages/small.py", "pages/_*", "conf.py"]
exclude_patterns += ["gallery/*.py"]  # from which the notebooks next to them are made

html_theme = "furo"
html_title = "feasibly"
html_logo = html_favicon = "static/logo.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # pages that begin at a second heading

nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_excludepatterns = ["gallery/*"]  # their outputs are stored
nb_execution_in_temp = True  # pages write files beside themselves
nb_execution_cache_path = str(ROOT / "docs" / "_build" / ("smoke" if SMOKE else "executed"))
nb_execution_timeout = 1800
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False


class ArrayLike:
    """Stands for numpy's alias, whose union of ten types the reference would write out.

    `autodoc_type_aliases` serves only annotations that are strings.
    """


ArrayLike.__module__, numpy.typing.ArrayLike = "numpy.typing", ArrayLike  # ty: ignore

# Types of other libraries that are linked to. The build needs no network: these inventories are
# written here, of the names in use. `$` stands for a name.
INVENTORIES = {
    "torch https://docs.pytorch.org/docs/stable/": {
        "class tensors.html#$": "torch.Tensor",
        "class tensor_attributes.html#$": "torch.device torch.dtype",
        "class generated/$.html#$": "torch.Generator torch.nn.Module",
    },
    "numpy https://numpy.org/doc/stable/": {
        "class reference/generated/$.html#$": "numpy.ndarray",
        "class reference/typing.html#$": "numpy.typing.ArrayLike",
    },
    "python https://docs.python.org/3/": {
        "class library/functions.html#$": "bool float int",
        "class library/stdtypes.html#$": "bytes dict list range set str tuple",
        "data library/constants.html#$": "None",
        "data library/typing.html#$": "typing.Any",
        "class library/collections.abc.html#$": "collections.abc.Callable "
        "collections.abc.Iterable collections.abc.Iterator collections.abc.Mapping "
        "collections.abc.Sequence",
        "class library/pathlib.html#$": "pathlib.Path",
        "exception library/exceptions.html#$": "ImportError RuntimeError UserWarning ValueError",
    },
}
intersphinx_mapping = {}
for named, entries in INVENTORIES.items():
    key, address = named.split()
    lines = [
        f"{name} py:{kind} 1 {form.replace('$', name)} -\n"
        for kind, form, names in ((*place.split(), entries[place]) for place in entries)
        for name in names.split()
    ]
    head = f"# Sphinx inventory version 2\n# Project: {key}\n# Version: 0\n# zlib\n".encode()
    path = ROOT / "docs" / "_build" / "inventories" / f"{key}.inv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + zlib.compress("".join(lines).encode()))
    intersphinx_mapping[key] = (address, str(path))


def mathml(translator: HTML5Translator, node: nodes.Element) -> None:
    """Writes a formula as MathML, which browsers draw by themselves, without a network."""
    block = isinstance(node, nodes.math_block)
    tex = node.astext().strip().replace(r"\textsc", r"\text")
    if block and (r"\\" in tex or "&" in tex) and r"\begin" not in tex:
        tex = rf"\begin{{aligned}} {tex} \end{{aligned}}"
    drawn = LatexToMathML().convert_with_local_state(tex, displaystyle=block)
    tag = "div" if block else "span"
    translator.body.append(f'<{tag} class="math notranslate">{drawn}</{tag}>')
    raise nodes.SkipNode


def notebook(page: Path) -> bool:
    """Whether a page also comes as a notebook: it runs without the other files of the docs."""
    if not page.exists() or page.stem == "small":
        return False
    return not re.search(r"^(from|import) small\b", page.read_text(), re.M)


def notebooks(app: Sphinx) -> None:
    """Writes these pages as notebooks, without links to other pages."""
    NOTEBOOKS.mkdir(parents=True, exist_ok=True)
    for page in filter(notebook, PAGES.glob("[!_]*.py")):
        path = NOTEBOOKS / f"{page.stem}.ipynb"
        if not path.exists() or path.stat().st_mtime < page.stat().st_mtime:
            text = LINK.sub(r"\1", page.read_text())
            _, _, cells = text.partition("\n\n")  # the header is for tools that read the page
            book = jupytext.reads(cells, fmt="py:percent")
            book.metadata["kernelspec"] = {"display_name": "Python 3", "name": "python3"}
            jupytext.write(book, path, fmt="ipynb")


def cached(app: Sphinx) -> None:
    """Makes the database of executed pages, which parallel readers would each try to make."""
    Path(app.config.nb_execution_cache_path).mkdir(parents=True, exist_ok=True)
    assert get_cache(app.config.nb_execution_cache_path).db is not None


def outward(app: Sphinx, name: str, source: list[str]) -> None:
    """Leads links to the cards of the priors to the page that holds them all, and makes plain text
    of other links that leave the docs for a folder, a page, or what is not there."""
    page = Path(app.env.doc2path(name)).parent

    def change(match: re.Match[str]) -> str:
        text, link = match.group(1), match.group(2)
        path = (page / link.split("#")[0]).resolve()
        if path.parent == CARDS and path.suffix == ".md":
            return f"[{text}](/cards.md)"
        if path.is_relative_to(ROOT / "docs") or (path.is_file() and path.suffix != ".md"):
            return match.group(0)
        return text

    cards = "".join(f"\n{card.read_text()}" for card in sorted(CARDS.glob("*.md")))
    source[0] = source[0].replace("<!-- cards -->", cards.replace("\n#", "\n##"))
    source[0] = LINK.sub(change, source[0])
    if notebook(PAGES / f"{Path(name).name}.py"):
        link = f"{{download}}`As a notebook </_build/notebooks/{Path(name).name}.ipynb>`"
        source[0] = re.sub(r"^(# # .*\n)", rf"\1#\n# {link}\n", source[0], count=1, flags=re.M)


def shapes(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list) -> None:
    """Sets the shapes of docstrings, such as (B, *), as code: their star would begin emphasis."""
    shape = re.compile(r"(?<![`\w])(\([^()`]*?)\\?\*\)")
    lines[:] = [shape.sub(r"``\1*)``", line) for line in lines]


KINDS = ("class", "data", "exception", "function")


def attributes(app: Sphinx, domain: str, kind: str, content: addnodes.desc_content) -> None:
    """Leaves parameters out whose class describes them as its attributes, with their types."""
    signature = content.parent[0]
    if domain == "py" and kind == "class" and signature.get("module"):
        name = f"{signature['module']}.{signature['fullname']}"
        known = app.env.current_document.autodoc_annotations.get(name, {})
        for part in content.findall(addnodes.desc_signature):
            known.pop(part["fullname"].rpartition(".")[2], None)


def linked(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Leads the first mention of a public name on a page, such as `feasibly.sample` or `PPR(...)`,
    to the reference. A name without `feasibly.` must be that of a class."""
    objects = app.env.get_domain("py").objects
    known = {}
    for full in sorted(objects, key=lambda name: -name.count(".")):  # the shortest name wins
        if not page.startswith("api") and objects[full].objtype in KINDS:
            known[full] = known[full.rpartition(".")[2]] = full
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext().partition("(")[0]
        last = name.rpartition(".")[2]
        full = known.get(name) or known.get(last, "")
        # `feasibly.Linear` is documented as feasibly.constraints.Linear
        named = full == name or (last[:1].isupper() and full.endswith(name.split("feasibly")[-1]))
        if full and named and not isinstance(literal.parent, nodes.reference | nodes.title):
            target = app.builder.get_relative_uri(page, objects[full].docname)
            link = nodes.reference("", "", refuri=f"{target}#{full}", internal=True)
            literal.replace_self(link)
            link += literal
            known = {key: value for key, value in known.items() if value != full}


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("builder-inited", notebooks)
    app.connect("builder-inited", cached)
    app.connect("source-read", outward)
    app.connect("autodoc-process-docstring", shapes)
    app.connect("object-description-transform", attributes, priority=400)
    app.connect("doctree-resolved", linked)
