// Shape of the double binary tree (Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction
// and scan", 2009): two binary trees over the positions 0 .. n-1 with disjoint sets of inner nodes, so that a rank
// which reduces or forwards in one tree is a leaf in the other and every wire is busy in both directions. Pure
// functions.
//
// Tree 0 is the in-order tree: numbered from 1, the largest power of two is the top, and a number's lowest set bit says
// how high in the tree it is. Odd numbers (even positions) are leaves:
//
//   n = 7      3               n = 8               7      the last node has no right child when n is even
//            /   \                               /
//           1     5                            3
//          / \   / \                         /   \         .
//         0   2 4   6                       1     5
//                                          / \   / \       .
//                                         0   2 4   6
//
// Tree 1 turns leaves into inner nodes: the mirror image p -> n-1-p when n is even, a shift p -> p+1 mod n when n is
// odd (a mirror image would keep odd positions odd).
#pragma once

namespace tutti {

struct TreeNode {
  int parent = -1;          // -1 at the top
  int child[2] = {-1, -1};  // child[1] only if there is child[0]
};

// `position` in 0 .. n-1, `tree` 0 or 1.
TreeNode double_tree_node(int tree, int n, int position);
int double_tree_top(int tree, int n);

}  // namespace tutti
