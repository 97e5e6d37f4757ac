"""No class of the library has more than 12 data members or 25 functions: a larger one does several jobs. A struct that
describes a message or a file to a template (values without a function) may have more members."""
import re

import tree

MOST_MEMBERS, MOST_FUNCTIONS = 12, 25
HEAD = re.compile(r"\b(?:class|struct)\s+(?:alignas\(\w+\)\s+|\[\[[^\]]*\]\]\s+)*(?P<name>\w+(?:<[^<>{}]*>)?)\s*(?:final\s*)?(?::[^:;{}][^;{}]*)?\{")
NOT_MEMBERS = re.compile(r"(?:using|typedef|friend|static_assert|class|struct|enum|union|template\s*<[^;]*>\s*(?:class|struct))\b")


def without_comments(text):
    """Replaces strings by empty ones, so that nothing in them counts."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    return re.sub(pattern, lambda m: '""' if m[0][0] in "\"'" else " ", text, flags=re.S)


def closing(text, at):
    """The end of the bracket at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "{(") - (text[i] in "})")
        if depth == 0:
            return i
    return len(text) - 1


def declarations(body):
    """The members one after another, without what is in brackets."""
    out, at = "", 0
    while at < len(body):
        if body[at] in "({":
            end = closing(body, at)
            out += body[at] + body[end]
            follows = body[end + 1:].lstrip()[:1]
            if body[at] == "{" and follows not in (";", ",", "("):
                out += ";"  # the end of a function body
            at = end + 1
        else:
            out += body[at]
            at += 1
    out = re.sub(r"\b(?:public|private|protected)\s*:", " ", out)
    return [" ".join(part.split()) for part in out.split(";") if part.strip()]


def count(body):
    members = functions = 0
    names = set()
    for one in declarations(body):
        if NOT_MEMBERS.match(one) or one in ("{}",):
            continue
        before = re.sub(r"\b(?:alignas|decltype|std::function<[^;]*>)\s*\(\)|\[\[[^\]]*\]\]|std::function<.*?\(\)>", " ", one)
        while re.search(r"<[^<>()]*>", before):
            before = re.sub(r"<[^<>()]*>", " ", before, count=1)
        declared = re.split(r"=(?!=)|\{", before, maxsplit=1)[0]
        if "operator" in before or "(" in declared:
            name = re.search(r"(operator\s*\S+|~?\w+)\s*\(", before)
            names.add(name[1] if name else before)
            functions += 1
        elif not re.match(r"(?:inline )?(?:static|constexpr)\b", declared):
            members += 1 + re.sub(r"\{\}|\[[^\]]*\]", "", before).count(",")
    return members, functions


def classes(text):
    text = without_comments(text)
    for head in HEAD.finditer(text):
        begin = head.end() - 1
        yield head["name"], *count(text[begin + 1:closing(text, begin)])


def complaint(path, name, members, functions):
    if functions <= MOST_FUNCTIONS and (members <= MOST_MEMBERS or functions == 0):
        return None
    return f"{path}: {name} has {members} members and {functions} functions: at most {MOST_MEMBERS} and {MOST_FUNCTIONS}"


def self_test():
    planted = ["int a = f(1, 2), b_[3]; // int c;", "std::map<int, std::string> d_{1}, e;", "void f(int a, int b) { int c; }",
               "bool operator==(const X&) const = default;", "std::function<int(int)> g = {};", "static constexpr int h = 1;",
               "using K = int;", "struct Inner { int i; };", "explicit X(int i) : a(i), b_{} {}", "enum class E { kA, kB };",
               "virtual int j() const = 0;", "alignas(64) std::atomic<int> k{0};"]
    found = list(classes("class X final : public Y<int> {\n public:\n" + "\n".join(planted) + "\n};"))
    wrong = [] if found[0] == ("X", 6, 4) else [f"this test counts planted members and functions as {found[0][1:]}"]
    limits = (MOST_MEMBERS, MOST_FUNCTIONS), (MOST_MEMBERS + 1, 1), (0, MOST_FUNCTIONS + 1)
    if [bool(complaint("a.h", "X", *size)) for size in limits] != [False, True, True]:
        wrong.append("this test does not know its limits")
    return wrong


def main():
    found, n_classes = self_test(), 0
    for path in tree.files():
        if path.parts[0] in ("lib", "transports", "kernels") and path.suffix in (".h", ".cpp"):
            for name, members, functions in classes(tree.read(path)):
                n_classes += 1
                found += filter(None, [complaint(path, name, members, functions)])
    tree.finish(found, n_classes)


if __name__ == "__main__":
    main()
