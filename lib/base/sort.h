// A stable sort for short lists. std::stable_sort is not taken, because clang 16 and later warn of it in the headers of
// g++ 12, which use what they call deprecated.
#pragma once

#include <algorithm>
#include <iterator>

namespace tutti {

// By insertion: what is in order already costs one comparison for each bit of its place.
template <typename Iterator, typename Less>
void sort_stably(Iterator begin, Iterator end, const Less& less) {
  for (Iterator at = begin; at != end; ++at) std::rotate(std::upper_bound(begin, at, *at, less), at, std::next(at));
}

}  // namespace tutti
