#include "schedule/double_tree.h"

#include <bit>

namespace tutti {
namespace {

// The functions on numbers are about tree 0, numbered 1 .. n, where 0 stands for "none".
int top_number(int n) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
}

int lowest_bit(int number) {
  return number & -number;
}

int parent_number(int n, int number) {
  if (number == top_number(n)) return 0;
  const int bit = lowest_bit(number);
  const int parent = (number ^ bit) | (bit << 1);
  // Where the full tree's parent is beyond n, so are all ancestors to the right: the nearest to the left is the parent.
  return parent <= n ? parent : number ^ bit;
}

// `side`: -1 is left, 1 is right.
int child_number(int n, int number, int side) {
  int half = lowest_bit(number) >> 1;
  while (half > 0 && number + side * half > n) half >>= 1;
  return half > 0 ? number + side * half : 0;
}

// From a number in tree 0 to the position in `tree`, and back.
int to_position(int tree, int n, int number) {
  if (number == 0) return -1;
  if (tree == 0) return number - 1;
  return n % 2 == 0 ? n - number : number % n;
}

int to_number(int tree, int n, int position) {
  if (tree == 0) return position + 1;
  return n % 2 == 0 ? n - position : (position + n - 1) % n + 1;
}

}  // namespace

TreeNode double_tree_node(int tree, int n, int position) {
  const int number = to_number(tree, n, position);
  TreeNode node;
  node.parent = to_position(tree, n, parent_number(n, number));
  node.child[0] = to_position(tree, n, child_number(n, number, -1));
  node.child[1] = to_position(tree, n, child_number(n, number, 1));
  return node;
}

int double_tree_top(int tree, int n) {
  return to_position(tree, n, top_number(n));
}

}  // namespace tutti
