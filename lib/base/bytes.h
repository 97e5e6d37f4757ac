// Values to bytes and back, for what travels between ranks. The reader never leaves its bytes: after the first thing
// that does not fit, `ok()` is false and all further reads give zeros.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

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
  std::string take() { return std::move(bytes_); }

 private:
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
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
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
