// A network that predicts the next character: embeddings of the context side by side, hidden layers with ReLU, softmax
// (Bengio et al., "A neural probabilistic language model", 2003).
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti::train {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A parameter, its gradient descent's momentum included.
struct Weight {
  std::string name;
  Matrix value, momentum;
};

struct Shape {
  int alphabet, context, embedding, hidden, layers;
};

// Each row of `inputs` is a context.
struct Batch {
  Eigen::Matrix<uint8_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> inputs;
  std::vector<uint8_t> targets;
};

class Model {
 public:
  Model(const Shape& shape, uint64_t seed);

  // In the order of the forward pass.
  std::vector<Weight>& weights() { return weights_; }

  // The mean loss of the batch, in nats.
  double forward(const Batch& batch);

  // After forward: computes the gradients of `scale` times the loss. Calls done(i, gradient of weights()[i]) as soon as
  // that is complete: from the last layer to the first.
  void backward(const Batch& batch, float scale, const std::function<void(size_t, const Matrix&)>& done);

 private:
  void add_weight(const std::string& name, int rows, int columns, float range, uint64_t seed);

  const Shape shape_;
  std::vector<Weight> weights_;      // embedding, then the matrix and the bias of each layer
  std::vector<Matrix> activations_;  // inputs of each layer
  Matrix probabilities_;
};

}  // namespace tutti::train
