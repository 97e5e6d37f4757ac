"""A text file as a constant of namespace tutti::trace: embed.py NAME FILE OUTPUT."""
import sys
from pathlib import Path

name, source, output = sys.argv[1:]
text = Path(source).read_text(encoding="utf-8")
# Compilers need not support literals of more than 65,536 characters.
pieces = [text[i : i + 8000] for i in range(0, len(text), 8000)]
literal = "\n".join(f'R"text({piece})text"' for piece in pieces)
declared = f"extern const char {name}[];\nconst char {name}[] =\n{literal};"
Path(output).write_text(f"namespace tutti::trace {{\n{declared}\n}}\n", encoding="utf-8")
