// A stable sort for short lists. Not std::stable_sort, because clang 16 and later warn that it uses deprecated
// functions in the headers of g++ 12.
#pragma once

#include <algorithm>
#include <iterator>

namespace tutti {

// Binary insertion: an element that is already in order costs one comparison for each bit of its position.
template <class List, class Less>
void sort_stably(List& list, const Less& less) {
  for (auto at = list.begin(); at != list.end(); ++at)
    std::rotate(std::upper_bound(list.begin(), at, *at, less), at, std::next(at));
}

}  // namespace tutti
