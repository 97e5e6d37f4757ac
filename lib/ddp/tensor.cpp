#include "tensor.h"

namespace tutti::ddp {
namespace {

struct TypeInfo {
  const char* name;
  size_t bytes;
};

// By the value of tuttiDataType_t.
constexpr TypeInfo kTypes[tuttiNumTypes] = {{"int8", 1},    {"uint8", 1},    {"int32", 4},      {"uint32", 4},
                                            {"int64", 8},   {"uint64", 8},   {"float16", 2},    {"float32", 4},
                                            {"float64", 8}, {"bfloat16", 2}, {"float8e4m3", 1}, {"float8e5m2", 1}};

bool is_type(tuttiDataType_t type) {
  return static_cast<int>(type) >= 0 && static_cast<int>(type) < tuttiNumTypes;
}

bool can_be_gradient(tuttiDataType_t type) {
  return type == tuttiFloat32 || type == tuttiFloat64 || type == tuttiFloat16 || type == tuttiBfloat16;
}

std::string shape_text(const Tensor& tensor) {
  std::string out = "[";
  for (const size_t length : tensor.shape) out += (out.size() > 1 ? ", " : "") + std::to_string(length);
  return out + "]";
}

Status take_shape(const tuttiDdpTensor_t& given, const std::string& name, Tensor* out) {
  if (given.ndim < 0 || given.ndim > TUTTI_DDP_MAX_DIMS)
    return invalid_argument(text("%s: ndim=%d; it has to be 0 to %d", name.c_str(), given.ndim, TUTTI_DDP_MAX_DIMS));
  if (given.ndim == 0) {
    out->shape = {given.count};
    return {};
  }
  out->shape.assign(given.shape, given.shape + given.ndim);
  size_t product = 1;
  bool overflow = false;
  for (const size_t length : out->shape) overflow |= __builtin_mul_overflow(product, length, &product);
  if (overflow || product != given.count)
    return invalid_argument(text("%s: count=%zu, but its shape is %s; count has to be the product", name.c_str(),
                                 given.count, shape_text(*out).c_str()));
  return {};
}

Status check_device(const tuttiDdpTensor_t& given, const std::string& name, int cuda_device) {
  if (given.device == TUTTI_DDP_HOST || (given.device >= 0 && given.device == cuda_device)) return {};
  const std::string where = cuda_device < 0 ? "in host memory" : text("on CUDA device %d", cuda_device);
  return invalid_argument(
      text("%s: device=%d, but comm is %s; a device other than TUTTI_DDP_HOST has to be that of a "
           "communicator made with config.cudaDevice",
           name.c_str(), given.device, where.c_str()));
}

}  // namespace

size_t element_bytes(tuttiDataType_t type) {
  return is_type(type) ? kTypes[type].bytes : 0;
}

const char* type_name(tuttiDataType_t type) {
  return is_type(type) ? kTypes[type].name : "unknown type";
}

std::string name_of(const char* what, size_t index, const Tensor& tensor) {
  std::string out = std::string(what) + " " + std::to_string(index);
  if (!tensor.name.empty()) out += " '" + tensor.name + "'";
  return out;
}

std::string describe(const char* what, size_t index, const Tensor& tensor) {
  const bool has_gradient = std::string(what) == "parameter";
  return name_of(what, index, tensor) + " of " + type_name(tensor.type) + " " + shape_text(tensor) +
         (has_gradient ? std::string(", gradient ") + type_name(tensor.grad_type) : "") +
         (tensor.data == nullptr ? ", without data" : "") + (tensor.device >= 0 ? ", on a GPU" : "");
}

Status take_tensor(const tuttiDdpTensor_t* tensors, size_t index, const char* what, int cuda_device, Tensor* out) {
  const tuttiDdpTensor_t& given = tensors[index];
  if (given.name != nullptr) out->name = given.name;
  const std::string name = name_of(what, index, *out);
  const bool is_parameter = std::string(what) == "parameter";
  if (!is_type(given.datatype))
    return invalid_argument(
        text("%s: datatype=%d is not one of tuttiDataType_t", name.c_str(), static_cast<int>(given.datatype)));
  if (is_parameter && !can_be_gradient(given.gradDatatype))
    return invalid_argument(text("%s: gradDatatype is %d (%s); it has to be float32, float64, float16 or bfloat16",
                                 name.c_str(), static_cast<int>(given.gradDatatype), type_name(given.gradDatatype)));
  if (Status s = check_device(given, name, cuda_device); !s) return s;
  if (given.count > (size_t{1} << 60))
    return invalid_argument(text("%s: count=%zu is more than memory can hold", name.c_str(), given.count));
  if (Status s = take_shape(given, name, out); !s) return s;
  out->data = given.data;
  out->grad = is_parameter ? given.grad : nullptr;
  out->device = given.device;
  out->count = given.count;
  out->type = given.datatype;
  out->grad_type = given.gradDatatype;
  return {};
}

}  // namespace tutti::ddp
