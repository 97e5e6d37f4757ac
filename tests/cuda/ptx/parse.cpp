// Reads PTX as nvcc writes it: one instruction per line.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <unordered_map>

#include "code.h"

namespace tutti_test::ptx {
namespace {

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool begins(const std::string& text, const char* with) {
  return text.rfind(with, 0) == 0;
}

uint32_t number_at(const std::string& text, size_t at) {
  return static_cast<uint32_t>(atoi(text.c_str() + at));
}

// Splits "{a, b}, c|d, [e+8]" into five words.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + ",") {
    if (c != ',' && c != '{' && c != '}' && c != '|') {
      word += c;
      continue;
    }
    if (word = trimmed(word); !word.empty()) words.push_back(word);
    word.clear();
  }
  return words;
}

bool read_number(const std::string& text, uint64_t* value) {
  char* end = nullptr;
  const bool is_float = text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'd');
  const char* const begin = text.c_str() + (is_float ? 2 : 0);
  *value = text[0] == '-' ? static_cast<uint64_t>(strtoll(begin, &end, 0)) : strtoull(begin, &end, is_float ? 16 : 0);
  return *end == '\0' && end != begin;
}

using Offsets = std::map<std::string, uint32_t>;
constexpr const char* kParameterBase = "parameters";  // the base register of their addresses

class Parser {
 public:
  explicit Parser(Module* module) : module_(module) {}

  void line(const std::string& raw) {
    line_++;
    const std::string text = trimmed(raw.substr(0, raw.find("//")));
    if (text.empty() || text == ")") return;
    if (text[0] == '{' && text.find('}') == std::string::npos) depth_++;
    if (text == "{") return;
    if (text.find(".entry") != std::string::npos) return begin_kernel(text);
    if (begins(text, ".shared")) return shared(text);
    if (kernel_ == nullptr) return header(text);
    if (text[0] == '.') return directive(text);
    if (text == "}") {
      if (--depth_ == 0) end_kernel();
      return;
    }
    if (text.back() == ':') {
      labels_[text.substr(0, text.size() - 1)] = size();
      return;
    }
    // Inline assembly is in braces, on one line or several.
    instruction(text[0] == '{' ? trimmed(text.substr(1, text.rfind('}') - 1)) : text);
  }

  void end() {
    if (kernel_ != nullptr) problem("the text ends in a kernel");
  }

 private:
  uint32_t size() const { return static_cast<uint32_t>(kernel_->code.size()); }
  void problem(const std::string& what) {
    module_->problems.push_back(what + " (line " + std::to_string(line_) + ")");
    if (kernel_ != nullptr && kernel_->problem.empty()) kernel_->problem = module_->problems.back();
  }

  void header(const std::string& text) {
    if (!begins(text, ".version") && !begins(text, ".target") && !begins(text, ".address_size 64"))
      problem("unknown outside of kernels: " + text);
  }

  void begin_kernel(const std::string& text) {
    const size_t begin = text.find(".entry") + 7;
    kernel_ = std::make_unique<Kernel>();
    kernel_->name = trimmed(text.substr(begin, text.find('(') - begin));
    registers_.clear(), is_wide_.clear(), labels_.clear(), branches_.clear(), constants_.clear(), parameters_.clear(),
        wide_names_.clear();
    depth_ = 0;
    shared_ = shared_of_all_;
    shared_end_ = shared_end_of_all_;
  }

  void directive(const std::string& text) {
    if (begins(text, ".param")) {
      parameter(text);
    } else if (begins(text, ".reg") && text.find("64 ") != std::string::npos && text.find('<') == std::string::npos) {
      for (const std::string& name : words_of(text.substr(text.find('%'), text.find(';') - text.find('%'))))
        wide_names_.insert(name);  // of inline assembly
    } else if (begins(text, ".maxntid")) {
      kernel_->most_threads = number_at(text, strlen(".maxntid"));
    } else if (begins(text, ".minnctapersm")) {
      kernel_->least_blocks = number_at(text, strlen(".minnctapersm"));
    } else if (!begins(text, ".reg") && !begins(text, ".pragma")) {
      problem("unknown directive " + text);
    }
  }

  // ".param .u64 name," or ".param .align 8 .b8 name[16]"
  void parameter(const std::string& text) {
    const size_t bracket = text.find('['), align = text.find(".align ");
    const size_t end = std::min({bracket, text.find(','), text.size()}), begin = text.rfind(' ', end) + 1;
    const size_t type = text.find_last_of("usbf", begin - 1);
    uint32_t bytes = number_at(text, type + 1) / 8;
    const uint32_t to = align == std::string::npos ? bytes : number_at(text, align + strlen(".align "));
    if (bracket != std::string::npos) bytes *= number_at(text, bracket + 1);
    if (bytes == 0 || to == 0) return problem("unknown parameter " + text);
    const uint32_t at = (kernel_->parameter_bytes + to - 1) / to * to;
    parameters_[text.substr(begin, end - begin)] = at;
    kernel_->parameters.push_back({at, bytes});
    kernel_->parameter_bytes = at + bytes;
  }

  void shared(const std::string& text) {
    const size_t bracket = text.find('['), align = text.find(".align ");
    if (bracket == std::string::npos || align == std::string::npos) return problem("unknown shared memory " + text);
    const uint32_t to = number_at(text, align + strlen(".align "));
    uint32_t& end = kernel_ == nullptr ? shared_end_of_all_ : shared_end_;
    end = (end + to - 1) / to * to;
    const size_t begin = text.rfind(' ', bracket) + 1;
    (kernel_ == nullptr ? shared_of_all_ : shared_)[text.substr(begin, bracket - begin)] = end;
    end += number_at(text, bracket + 1);
  }

  Operand register_named(const std::string& name) {
    const bool is_wide = begins(name, "%rd") || begins(name, "%fd") || name == "_" || wide_names_.count(name) > 0;
    const auto [at, is_new] = registers_.try_emplace(name, static_cast<uint32_t>(is_wide_.size()));
    if (is_new) is_wide_.push_back(is_wide);
    return {kUnassigned + at->second, 0, false, is_wide};
  }

  Operand constant(uint64_t value) {
    auto& all = kernel_->constants;
    const auto [found, is_new] = constants_.try_emplace(value, static_cast<uint32_t>(all.size()));
    const uint32_t at = found->second;
    if (is_new) {
      all.resize(all.size() + kWideRow + kNarrowRow);
      for (uint32_t lane = 0; lane < kLanes; lane++) {
        memcpy(all.data() + at + lane * 8, &value, 8);
        memcpy(all.data() + at + kWideRow + lane * 4, &value, 4);
      }
    }
    return {at, at + kWideRow, true, true};
  }

  Operand operand(const std::string& word) {
    if (word == kParameterBase) return {kParameters, kParameters, false, true};
    if (word == "%tid.x") return {kThreadId, kThreadId, false, false};
    if (word == "%ctaid.x") return {kBlockId, kBlockId, false, false};
    if (word == "%ntid.x") return {kBlockSize, kBlockSize, false, false};
    if (word == "%nctaid.x") return {kGridSize, kGridSize, false, false};
    if (const auto at = parameters_.find(word); at != parameters_.end()) {
      if (at->second != 0) problem("the address of a parameter that is not the first one: " + word);
      return {kParameters, kParameters, false, true};
    }
    if (word[0] == '%' || word == "_") return register_named(word);
    if (const auto at = shared_.find(word); at != shared_.end()) return constant(at->second);
    uint64_t value = 0;
    if (!read_number(word, &value)) problem("unknown operand " + word);
    return constant(value);
  }

  std::string guard(const std::string& text, Instruction* i) {
    if (text[0] != '@') return text;
    const size_t space = text.find_first_of(" \t");
    i->is_guarded = true;
    i->guard_negated = text[1] == '!';
    const size_t begin = i->guard_negated ? 2 : 1;
    i->guard = register_named(text.substr(begin, space - begin));
    return trimmed(text.substr(space));
  }

  void instruction(const std::string& text) {
    Instruction i;
    i.line = line_;
    std::string rest = guard(text.substr(0, text.find(';')), &i);
    const size_t end = std::min(rest.size(), rest.find_first_of(" \t"));
    std::string spelling = rest.substr(0, end);
    module_->spellings[spelling]++;
    rest = trimmed(rest.substr(end));
    // Moves between one register and several get two different names here, although they are spelled alike.
    if (begins(spelling, "mov") && rest.find('{') != std::string::npos)
      spelling += rest[0] == '{' ? ".unpack" : ".pack";
    if (!decode(spelling, &i)) return problem("unknown instruction " + spelling);
    if (i.kind == Kind::kBranch)
      branches_.emplace_back(size(), rest);
    else if (i.kind != Kind::kBarrier)
      operands(words_of(rest), &i);
    kernel_->code.push_back(i);
    kernel_->text.push_back(text);
  }

  // The address follows the stored values; other operands keep their order.
  void operands(const std::vector<std::string>& words, Instruction* i) {
    std::string address;
    for (const std::string& word : words) {
      if (i->n_operands == kMaxOperands) return problem("too many operands");
      if (word[0] != '[') {
        i->operands[i->n_operands++] = operand(word);
        continue;
      }
      const size_t plus = word.find('+');
      if (plus != std::string::npos) i->offset = atoll(word.c_str() + plus + 1);
      address = trimmed(word.substr(1, std::min(plus, word.size() - 1) - 1));
      if (const auto at = parameters_.find(address); at != parameters_.end()) {
        i->offset += at->second;
        address = kParameterBase;
      }
      if (i->n_results > 0) i->operands[i->n_operands++] = operand(address);
    }
    if (!address.empty() && i->n_results == 0) i->operands[i->n_operands++] = operand(address);
  }

  void end_kernel() {
    for (const auto& [at, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) problem("unknown label " + label);
      kernel_->code[at].target = found == labels_.end() ? 0 : found->second;
    }
    kernel_->shared_bytes = shared_end_ - kSharedBase;
    kernel_->was_run = std::make_unique<std::atomic<uint8_t>[]>(kernel_->code.size());
    assign_rows(kernel_.get(), is_wide_);
    module_->kernels.push_back(std::move(kernel_));
  }

  Module* const module_;
  uint32_t line_ = 0;
  Offsets shared_of_all_, shared_;
  uint32_t shared_end_of_all_ = kSharedBase, shared_end_ = kSharedBase;

  // The current kernel.
  std::unique_ptr<Kernel> kernel_;
  int depth_ = 0;  // nesting of braces
  Offsets parameters_;
  std::unordered_map<std::string, uint32_t> registers_, labels_;
  std::vector<bool> is_wide_;
  std::set<std::string> wide_names_;
  std::map<uint64_t, uint32_t> constants_;
  std::vector<std::pair<uint32_t, std::string>> branches_;
};

}  // namespace

void Module::add_text(const std::string& text) {
  Parser parser(this);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) parser.line(line);
  parser.end();
}

void Module::add_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return problems.push_back(path + " cannot be read");
  std::stringstream text;
  text << file.rdbuf();
  add_text(text.str());
}

const Kernel* Module::find(const std::string& part) const {
  const Kernel* found = nullptr;
  for (const auto& kernel : kernels) {
    if (kernel->name.find(part) == std::string::npos) continue;
    if (found != nullptr) return nullptr;
    found = kernel.get();
  }
  return found;
}

}  // namespace tutti_test::ptx
