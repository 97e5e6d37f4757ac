// Serialises and parses what travels between ranks. The reader never reads beyond its bytes: after the first value that
// does not fit, `ok()` is false and all further reads give zeros.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tutti {

class ByteWriter {
 public:
  template <class T>
  ByteWriter& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ByteWriter& put_string(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  // One after the other, as ByteReader::all() reads them; the length of a list precedes its elements.
  template <class... Value>
  ByteWriter& all(const Value&... values) {
    (one(values), ...);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  template <class Value>
  void one(const Value& value) {
    if constexpr (std::is_convertible_v<const Value&, std::string_view>)
      put_string(value);
    else
      put(value);
  }
  template <class Value>
  void one(const std::vector<Value>& list) {
    put(static_cast<uint32_t>(list.size()));
    for (const Value& value : list) one(value);
  }

  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (take(sizeof value)) memcpy(&value, taken_, sizeof value);
    return value;
  }
  std::string get_string() {
    const uint32_t bytes = get<uint32_t>();
    return take(bytes) ? std::string(taken_, bytes) : std::string();
  }
  template <class... Value>
  ByteReader& all(Value&... values) {
    (one(values), ...);
    return *this;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  template <class Value>
  void one(Value& value) {
    value = get<Value>();
  }
  void one(bool& flag) { flag = get<uint8_t>() != 0; }
  void one(std::string& text) { text = get_string(); }
  template <class Value>
  void one(std::vector<Value>& list) {
    for (auto n = get<uint32_t>(); ok_ && n > 0; n--) one(list.emplace_back());
  }
  bool take(size_t bytes) {
    ok_ = ok_ && bytes <= bytes_.size();
    if (!ok_) return false;
    taken_ = bytes_.data();
    bytes_.remove_prefix(bytes);
    return true;
  }
  std::string_view bytes_;
  const char* taken_ = nullptr;
  bool ok_ = true;
};

}  // namespace tutti
