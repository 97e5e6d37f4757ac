#include "model.h"

#include <cmath>
#include <random>

namespace tutti::train {

Model::Model(const Shape& shape, uint64_t seed) : shape_(shape) {
  add_weight("embedding", shape.alphabet, shape.embedding, 0.5f, seed);
  int inputs = shape.context * shape.embedding;
  for (int layer = 0; layer <= shape.layers; layer++) {
    const bool last = layer == shape.layers;
    const int outputs = last ? shape.alphabet : shape.hidden;
    const std::string name = last ? "output" : "hidden" + std::to_string(layer);
    // He et al., "Delving deep into rectifiers", 2015
    add_weight(name + ".weight", inputs, outputs, std::sqrt(6.0f / static_cast<float>(inputs)), seed);
    add_weight(name + ".bias", 1, outputs, 0, seed);
    inputs = outputs;
  }
}

// Without the standard library's distributions, which differ between implementations.
void Model::add_weight(const std::string& name, int rows, int columns, float range, uint64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed * 1000003 + weights_.size()));
  Weight weight{name, Matrix(rows, columns), Matrix::Zero(rows, columns)};
  for (Eigen::Index i = 0; i < weight.value.size(); i++)
    weight.value.data()[i] = range * (static_cast<float>(random() >> 8) * 0x1p-23f - 1);
  weights_.push_back(std::move(weight));
}

double Model::forward(const Batch& batch) {
  const Eigen::Index n = batch.inputs.rows();
  activations_.assign(1, Matrix(n, shape_.context * shape_.embedding));
  for (Eigen::Index i = 0; i < n; i++)
    for (int c = 0; c < shape_.context; c++)
      activations_[0].block(i, c * shape_.embedding, 1, shape_.embedding) = weights_[0].value.row(batch.inputs(i, c));
  for (size_t layer = 1; layer < weights_.size(); layer += 2) {
    Matrix out = activations_.back() * weights_[layer].value;
    out.rowwise() += weights_[layer + 1].value.row(0);
    if (layer + 2 < weights_.size()) out = out.cwiseMax(0.0f);
    activations_.push_back(std::move(out));
  }
  Matrix& logits = activations_.back();
  logits.colwise() -= logits.rowwise().maxCoeff().eval();
  probabilities_ = logits.array().exp().matrix();
  double loss = 0;
  for (Eigen::Index i = 0; i < n; i++) {
    const float sum = probabilities_.row(i).sum();
    loss += std::log(static_cast<double>(sum)) - static_cast<double>(logits(i, batch.targets[static_cast<size_t>(i)]));
    probabilities_.row(i) /= sum;
  }
  return loss / static_cast<double>(n);
}

void Model::backward(const Batch& batch, float scale, const std::function<void(size_t, const Matrix&)>& done) {
  const Eigen::Index n = batch.inputs.rows();
  Matrix gradient = probabilities_;
  for (Eigen::Index i = 0; i < n; i++) gradient(i, batch.targets[static_cast<size_t>(i)]) -= 1;
  gradient *= scale / static_cast<float>(n);
  for (size_t layer = weights_.size() - 2;; layer -= 2) {
    const Matrix& input = activations_[layer / 2];
    done(layer + 1, gradient.colwise().sum());
    done(layer, input.transpose() * gradient);
    gradient = gradient * weights_[layer].value.transpose();
    if (layer == 1) break;
    gradient = (input.array() > 0).select(gradient, 0.0f);
  }
  Matrix embedding = Matrix::Zero(shape_.alphabet, shape_.embedding);
  for (Eigen::Index i = 0; i < n; i++)
    for (int c = 0; c < shape_.context; c++)
      embedding.row(batch.inputs(i, c)) += gradient.block(i, c * shape_.embedding, 1, shape_.embedding);
  done(0, embedding);
}

}  // namespace tutti::train
