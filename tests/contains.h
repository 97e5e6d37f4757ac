// Searching for a text in a message.
#pragma once

#include <string>

namespace tutti_test {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tutti_test
