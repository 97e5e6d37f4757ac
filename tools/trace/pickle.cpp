// Pickles of plain values: dictionaries, lists, texts, numbers. Protocol 2, which every Python 3 reads.
#include <cstring>

#include "merge.h"

namespace tutti::trace {
namespace {

void add_word(uint32_t word, std::string* to) {
  for (int i = 0; i < 4; i++) *to += static_cast<char>(word >> (8 * i));
}

void add_text(const std::string& text, std::string* to) {
  *to += 'X';  // the number of UTF-8 bytes follows
  add_word(static_cast<uint32_t>(text.size()), to);
  *to += text;
}

void add_double(double value, std::string* to) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  *to += 'G';  // the most significant byte first
  for (int i = 7; i >= 0; i--) *to += static_cast<char>(bits >> (8 * i));
}

void add(const nlohmann::json& value, std::string* to) {
  using Kind = nlohmann::json::value_t;
  switch (value.type()) {
    case Kind::object:
      *to += "}(";
      for (const auto& [key, member] : value.items()) {
        add_text(key, to);
        add(member, to);
      }
      *to += 'u';
      break;
    case Kind::array:
      *to += "](";
      for (const auto& member : value) add(member, to);
      *to += 'e';
      break;
    case Kind::string: add_text(value, to); break;
    case Kind::boolean: *to += value.get<bool>() ? "\x88" : "\x89"; break;
    case Kind::number_integer:
    case Kind::number_unsigned: to->append(1, 'I').append(value.dump()).append(1, '\n'); break;
    case Kind::number_float: add_double(value, to); break;
    default: *to += 'N'; break;
  }
}

}  // namespace

std::string pickle(const nlohmann::json& json) {
  std::string bytes = "\x80\x02";
  add(json, &bytes);
  return bytes + '.';
}

}  // namespace tutti::trace
