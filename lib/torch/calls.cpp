// The fast path from Python to libtutti: one call per operation, without ctypes. calls.py loads this module, which is
// installed beside libtutti, and passes it the addresses of libtutti's functions. It uses only CPython's stable ABI, so
// that one binary serves every Python from 3.10 on, and nothing of torch's C++: a tensor is read through DLPack, or by
// its methods in Python.
//
// Threading: every function is called with the interpreter's lock held; an operation releases it while it runs.
// Lifetimes: the tables below own references to their objects, so that an address in them identifies one object.
#include <Python.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "operand.h"
#include "tutti/trace.h"
#include "tutti/tutti.h"

namespace {

// Incremented with the package's VERSION (calls.py): a package with another one does without the module.
constexpr int kVersion = 3;

// A reference that is released at the end of its scope.
struct GiveUp {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Ref = std::unique_ptr<PyObject, GiveUp>;

Ref hold(PyObject* borrowed) {
  Py_XINCREF(borrowed);
  return Ref(borrowed);
}

// The functions of libtutti that are called, in the order in which bind() is given their addresses.
struct Functions {
  decltype(&tuttiAllReduce) all_reduce;
  decltype(&tuttiBcast) broadcast;
  decltype(&tuttiReduce) reduce;
  decltype(&tuttiAllGather) all_gather;
  decltype(&tuttiReduceScatter) reduce_scatter;
  decltype(&tuttiBarrier) barrier;
  decltype(&tuttiSetPlace) set_place;
};
constexpr size_t kFunctions = sizeof(Functions) / sizeof(void*);

// The other arguments of bind(), in their order.
struct Bound {
  PyObject *tensor = nullptr, *parameter = nullptr;  // types whose methods have no side effects
  PyObject* types = nullptr;                         // torch.dtype -> tuttiDataType_t
  PyObject* profiles = nullptr;                      // () -> whether torch's profiler is on
  PyObject* is_foreign = nullptr;                    // (file's name) -> whether it is not the user's
  PyObject* number = nullptr;     // (what, first tensor, how many, frame or None) -> the place's number
  PyObject* fail = nullptr;       // (group, tuttiResult_t) raises
  PyObject* names = nullptr;      // all_reduce_'s operators -> tuttiRedOp_t
  PyObject* operators = nullptr;  // hash of a ReduceOp -> tuttiRedOp_t
  PyObject* finished = nullptr;   // the Work of a finished operation
};
Functions tutti_calls;
Bound bound;
const DlExchange* exchange = nullptr;  // if this torch has it

// A string that Python interns when the module is loaded.
struct Name {
  explicit Name(const char* t) : text(t), next(std::exchange(first, this)) {}
  operator PyObject*() const { return object; }
  const char* const text;
  Name* const next;
  PyObject* object = nullptr;
  static inline Name* first = nullptr;
};
Name s_all_gather("all_gather_single"), s_all_reduce("all_reduce"), s_async("asyncOp"), s_back("f_back"),
    s_barrier("barrier"), s_broadcast("broadcast"), s_comm("_comm"), s_communicator("_short"),
    s_contiguous("is_contiguous"), s_cpu("is_cpu"), s_data_ptr("data_ptr"), s_dtype("dtype"), s_file("co_filename"),
    s_last("f_lasti"), s_neg("is_neg"), s_numel("numel"), s_op("reduceOp"), s_reduce("reduce"),
    s_reduce_scatter("reduce_scatter"), s_root("rootRank"), s_shape("shape"), s_size("_size");

// ---- where the user's program calls from ----

struct Code {
  PyObject* code = nullptr;
  bool foreign = false;
};
// An operation and its first tensor, as far as they distinguish places.
struct Call {
  PyObject *what, *first;
  Py_ssize_t tensors;
  uintptr_t type;  // tuttiDataType_t, or the address of torch's dtype
  const Shape* shape;
};
struct Place {
  PyObject *what = nullptr, *code = nullptr;
  long instruction = 0;
  Py_ssize_t tensors = 0;
  uintptr_t type = 0;
  Shape shape;
  uint64_t number = 0;
};
// An object's address selects its slot; a later object with the same slot replaces it.
std::array<Code, 64> codes;
std::array<Place, 256> places;

size_t hash_of(const PyObject* object) {
  return reinterpret_cast<uintptr_t>(object) >> 4;
}

void keep(PyObject*& slot, PyObject* object) {
  PyObject* const before = slot;
  Py_XINCREF(object);
  slot = object;
  Py_XDECREF(before);
}

// 1, 0, or -1 with an exception.
int is_foreign(PyObject* code) {
  Code& slot = codes[(hash_of(code) ^ (hash_of(code) >> 6)) % codes.size()];
  if (slot.code == code) return slot.foreign ? 1 : 0;
  const Ref file(PyObject_GetAttr(code, s_file));
  const Ref answer(file ? PyObject_CallFunctionObjArgs(bound.is_foreign, file.get(), nullptr) : nullptr);
  const int foreign = answer ? PyObject_IsTrue(answer.get()) : -1;
  if (foreign < 0) return -1;
  keep(slot.code, code);
  slot.foreign = foreign == 1;
  return foreign;
}

struct Frame {
  Ref frame, code;  // the user's; null if there is none, or after an exception
};

Frame user_frame() {
  Ref frame = hold(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && frame.get() != Py_None) {
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.get()))));
    const int foreign = is_foreign(code.get());
    if (foreign < 0) break;
    if (foreign == 0) return {std::move(frame), std::move(code)};
    frame = Ref(PyObject_GetAttr(frame.get(), s_back));
  }
  return {};
}

// Names the place to the library.
bool name_place(uint64_t* number, const Call& call, PyObject* frame) {
  const Ref count(PyLong_FromSsize_t(call.tensors));
  if (!count) return false;
  const Ref named(PyObject_CallFunctionObjArgs(bound.number, call.what, call.first, count.get(), frame, nullptr));
  if (!named) return false;
  *number = PyLong_AsUnsignedLongLong(named.get());
  return PyErr_Occurred() == nullptr;
}

// Attributes this thread's operations from now on to this call, by the user's code that is nearest on the stack. False
// with an exception.
bool set_place(const Call& call) {
  const Frame at = user_frame();
  if (PyErr_Occurred() != nullptr) return false;
  PyObject* const frame = at.frame ? at.frame.get() : Py_None;
  const Ref last(at.frame ? PyObject_GetAttr(frame, s_last) : PyLong_FromLong(0));
  if (!last) return false;
  const long instruction = PyLong_AsLong(last.get());
  Place& place = places[(hash_of(at.code.get()) + static_cast<size_t>(instruction)) % places.size()];
  if (place.what != call.what || place.code != at.code.get() || place.instruction != instruction ||
      place.type != call.type || place.tensors != call.tensors || !(place.shape == *call.shape)) {
    uint64_t number = 0;
    if (!name_place(&number, call, frame)) return false;
    keep(place.what, call.what);
    keep(place.code, at.code.get());
    place = {call.what, at.code.get(), instruction, call.tensors, call.type, *call.shape, number};
  }
  tutti_calls.set_place(place.number);
  return true;
}

// ---- what Python calls ----

bool is_true(const Ref& object) {
  return object && PyObject_IsTrue(object.get()) == 1;
}
Ref call(PyObject* object, PyObject* method) {
  return Ref(PyObject_CallMethodObjArgs(object, method, nullptr));
}

// False with an exception.
bool get_shape(PyObject* tensor, Shape* shape) {
  const Ref lengths(PyObject_GetAttr(tensor, s_shape));
  const Py_ssize_t ndim = lengths ? PyTuple_Size(lengths.get()) : -1;
  shape->ndim = ndim > Shape::kMostDims ? -1 : static_cast<int>(ndim);
  for (int i = 0; i < shape->ndim; i++)
    shape->lengths[static_cast<size_t>(i)] = PyLong_AsLongLong(PyTuple_GetItem(lengths.get(), i));
  return PyErr_Occurred() == nullptr;
}

// Reads the tensor by its methods in Python.
bool take_slowly(PyObject* tensor, Operand* operand) {
  const Ref dtype(PyObject_GetAttr(tensor, s_dtype));
  PyObject* const code = dtype ? PyDict_GetItemWithError(bound.types, dtype.get()) : nullptr;
  if (code == nullptr || !is_true(Ref(PyObject_GetAttr(tensor, s_cpu))) || !is_true(call(tensor, s_contiguous)))
    return false;
  const Ref elems(call(tensor, s_numel)), address(elems ? call(tensor, s_data_ptr) : Ref());
  if (!address || !get_shape(tensor, &operand->shape)) return false;
  operand->type = static_cast<tuttiDataType_t>(PyLong_AsLong(code));
  operand->at = PyLong_AsVoidPtr(address.get());
  operand->elems = PyLong_AsSize_t(elems.get());
  return true;
}

// Reads a tensor that libtutti takes as it is: in host memory, contiguous, aligned, and of a type that Tutti has. False
// for any other, and after an exception.
bool take(PyObject* tensor, Operand* operand) {
  static constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  if (tensor == nullptr || (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != bound.tensor &&
                            reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != bound.parameter))
    return false;
  DlTensor described{};
  const bool taken = exchange == nullptr ? take_slowly(tensor, operand)
                                         : exchange->describe(tensor, &described) == 0 && take(described, operand);
  if (!taken || reinterpret_cast<uintptr_t>(operand->at) % kTypeBytes[operand->type] != 0) return false;
  // A conjugated tensor's imaginary parts may lack their sign in memory; they are contiguous only if there is one.
  return operand->elems != 1 || operand->type < tuttiFloat16 || !is_true(call(tensor, s_neg));
}

// The group's communicator; null if it no longer has one, or is another backend's.
tuttiComm_t comm_of(PyObject* group) {
  const Ref communicator(PyObject_GetAttr(group, s_communicator));
  const Ref comm(communicator ? PyObject_GetAttr(communicator.get(), s_comm) : nullptr);
  return comm && PyLong_Check(comm.get()) != 0 ? static_cast<tuttiComm_t>(PyLong_AsVoidPtr(comm.get())) : nullptr;
}

PyObject* fall_back() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) return nullptr;  // KeyboardInterrupt
  PyErr_Clear();
  Py_RETURN_NONE;
}

// Runs an operation with this first tensor (or None). Returns `done`, or null with an exception. Does nothing and
// returns None if there is no communicator or torch's profiler is on: the ordinary way then also reports errors.
template <typename Run>
PyObject* carry_out(PyObject* group, PyObject* what, PyObject* first, const Operand& x, PyObject* done, Run run) {
  const Ref profiled(PyObject_CallFunctionObjArgs(bound.profiles, nullptr));
  const tuttiComm_t comm = profiled && profiled.get() == Py_False ? comm_of(group) : nullptr;
  if (comm == nullptr || !set_place({what, first, first == Py_None ? 0 : 1, uintptr_t{x.type}, &x.shape}))
    return fall_back();
  PyThreadState* const thread = PyEval_SaveThread();
  const tuttiResult_t result = run(comm);
  PyEval_RestoreThread(thread);
  if (result == tuttiSuccess) return hold(done).release();
  const Ref code(PyLong_FromLong(result));
  return code ? PyObject_CallFunctionObjArgs(bound.fail, group, code.get(), nullptr) : nullptr;
}

// The only element of a list; null for anything else.
PyObject* only(PyObject* tensors) {
  return PyList_Check(tensors) != 0 && PyList_Size(tensors) == 1 ? PyList_GetItem(tensors, 0) : nullptr;
}

// From c10d's options: whether the caller waits, the operator, and the root. False also after an exception.
bool is_synchronous(PyObject* options) {
  const Ref later(PyObject_GetAttr(options, s_async));
  return later && later.get() == Py_False;
}
bool get_operator(PyObject* options, tuttiRedOp_t* to) {
  const Ref op(PyObject_GetAttr(options, s_op));
  const Ref hash(op ? PyLong_FromSsize_t(PyObject_Hash(op.get())) : nullptr);
  PyObject* const number = hash ? PyDict_GetItemWithError(bound.operators, hash.get()) : nullptr;
  if (number != nullptr) *to = static_cast<tuttiRedOp_t>(PyLong_AsLong(number));
  return number != nullptr;
}
bool get_int(PyObject* object, PyObject* name, int* to) {
  const Ref value(PyObject_GetAttr(object, name));
  if (value) *to = static_cast<int>(PyLong_AsLong(value.get()));
  return value && PyErr_Occurred() == nullptr;
}

// Whether `all` is one block for each rank of the group.
bool are_blocks(PyObject* group, const Operand& all, const Operand& one) {
  int size = 0;
  return get_int(group, s_size, &size) && all.type == one.type && all.elems == one.elems * static_cast<size_t>(size);
}

PyObject* reduce_all(PyObject* group, PyObject* tensor, tuttiRedOp_t op, PyObject* done) {
  const Ref kept = hold(tensor);
  Operand x;
  if (!take(tensor, &x)) return fall_back();
  return carry_out(group, s_all_reduce, tensor, x, done, [&](tuttiComm_t comm) {
    return tutti_calls.all_reduce(x.at, x.at, x.elems, x.type, op, comm, nullptr);
  });
}

// all_reduce_(group, tensor, op's name): True when it is done.
PyObject* all_reduce_(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  PyObject* const op =
      count == 3 && bound.names != nullptr ? PyDict_GetItemWithError(bound.names, arguments[2]) : nullptr;
  if (op == nullptr) return fall_back();
  return reduce_all(arguments[0], arguments[1], static_cast<tuttiRedOp_t>(PyLong_AsLong(op)), Py_True);
}

// These take the arguments of a ProcessGroup's methods, and return a finished Work.

// allreduce(group, tensors, options)
PyObject* allreduce(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  tuttiRedOp_t op = tuttiSum;
  if (count != 3 || !is_synchronous(arguments[2]) || !get_operator(arguments[2], &op)) return fall_back();
  return reduce_all(arguments[0], only(arguments[1]), op, bound.finished);
}

// reduce(group, tensors, options)
PyObject* reduce(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  tuttiRedOp_t op = tuttiSum;
  int root = 0;
  Operand x;
  if (count != 3 || !is_synchronous(arguments[2]) || !get_operator(arguments[2], &op) ||
      !get_int(arguments[2], s_root, &root))
    return fall_back();
  const Ref tensor = hold(only(arguments[1]));
  if (!take(tensor.get(), &x)) return fall_back();
  return carry_out(arguments[0], s_reduce, tensor.get(), x, bound.finished, [&](tuttiComm_t comm) {
    return tutti_calls.reduce(x.at, x.at, x.elems, x.type, op, root, comm, nullptr);
  });
}

// broadcast(group, tensors, options)
PyObject* broadcast(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  int root = 0;
  Operand x;
  if (count != 3 || !is_synchronous(arguments[2]) || !get_int(arguments[2], s_root, &root)) return fall_back();
  const Ref tensor = hold(only(arguments[1]));
  if (!take(tensor.get(), &x)) return fall_back();
  return carry_out(arguments[0], s_broadcast, tensor.get(), x, bound.finished,
                   [&](tuttiComm_t comm) { return tutti_calls.broadcast(x.at, x.elems, x.type, root, comm, nullptr); });
}

// all_gather(group, output, source, options)
PyObject* all_gather(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Operand to, x;
  if (count != 4 || !is_synchronous(arguments[3]) || !take(arguments[1], &to) || !take(arguments[2], &x) ||
      !are_blocks(arguments[0], to, x))
    return fall_back();
  return carry_out(arguments[0], s_all_gather, arguments[2], x, bound.finished, [&](tuttiComm_t comm) {
    return tutti_calls.all_gather(x.at, to.at, x.elems, x.type, comm, nullptr);
  });
}

// reduce_scatter(group, output, source, options)
PyObject* reduce_scatter(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  tuttiRedOp_t op = tuttiSum;
  Operand to, x;
  if (count != 4 || !is_synchronous(arguments[3]) || !get_operator(arguments[3], &op) || !take(arguments[1], &to) ||
      !take(arguments[2], &x) || !are_blocks(arguments[0], x, to))
    return fall_back();
  return carry_out(arguments[0], s_reduce_scatter, arguments[2], x, bound.finished, [&](tuttiComm_t comm) {
    return tutti_calls.reduce_scatter(x.at, to.at, to.elems, to.type, op, comm, nullptr);
  });
}

// barrier(group)
PyObject* barrier(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 1) return fall_back();
  return carry_out(arguments[0], s_barrier, Py_None, {}, bound.finished,
                   [](tuttiComm_t comm) { return tutti_calls.barrier(comm, nullptr); });
}

// set_place(what, first tensor or None, how many)
PyObject* set_place_of(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3 || tutti_calls.set_place == nullptr) {
    PyErr_SetString(PyExc_TypeError, "set_place(what, first, tensors) after bind()");
    return nullptr;
  }
  PyObject* const first = arguments[1];
  Shape shape;
  const Ref dtype(first == Py_None ? hold(Py_None) : Ref(PyObject_GetAttr(first, s_dtype)));  // torch keeps it alive
  if (!dtype || (first != Py_None && !get_shape(first, &shape)) ||
      !set_place(
          {arguments[0], first, PyLong_AsSsize_t(arguments[2]), reinterpret_cast<uintptr_t>(dtype.get()), &shape}))
    return nullptr;
  Py_RETURN_NONE;
}

// The library does not keep old numbers for ever.
PyObject* forget_places(PyObject*, PyObject*) {
  for (Place& place : places) keep(place.what, nullptr);
  Py_RETURN_NONE;
}

// Called once, before anything else: a list of the functions' addresses, and the members of Bound.
PyObject* bind(PyObject*, PyObject* arguments) {
  PyObject* addresses = nullptr;
  Bound given;
  if (PyArg_ParseTuple(arguments, "OOOOOOOOOOO:bind", &addresses, &given.tensor, &given.parameter, &given.types,
                       &given.profiles, &given.is_foreign, &given.number, &given.fail, &given.names, &given.operators,
                       &given.finished) == 0)
    return nullptr;
  std::array<void*, kFunctions> functions{};
  for (size_t i = 0; i < kFunctions; i++) {
    PyObject* const address = PyList_GetItem(addresses, static_cast<Py_ssize_t>(i));
    functions[i] = address != nullptr ? PyLong_AsVoidPtr(address) : nullptr;
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  const Ref capsule(PyObject_GetAttrString(given.tensor, "__dlpack_c_exchange_api__"));
  void* const table = capsule ? PyCapsule_GetPointer(capsule.get(), DlExchange::kCapsule) : nullptr;
  PyErr_Clear();
  exchange = static_cast<const DlExchange*>(table);
  if (exchange != nullptr && (exchange->major != DlExchange::kMajor || exchange->describe == nullptr))
    exchange = nullptr;
  Py_INCREF(arguments);  // and with it all that it contains
  bound = given;
  memcpy(&tutti_calls, functions.data(), sizeof tutti_calls);
  Py_RETURN_NONE;
}

template <typename Function>
PyCFunction function(Function* f) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

PyMethodDef methods[] = {
    {"bind", function(bind), METH_VARARGS, nullptr},
    {"all_reduce_", function(all_reduce_), METH_FASTCALL, nullptr},
    {"all_gather", function(all_gather), METH_FASTCALL, nullptr},
    {"allreduce", function(allreduce), METH_FASTCALL, nullptr},
    {"barrier", function(barrier), METH_FASTCALL, nullptr},
    {"broadcast", function(broadcast), METH_FASTCALL, nullptr},
    {"reduce", function(reduce), METH_FASTCALL, nullptr},
    {"reduce_scatter", function(reduce_scatter), METH_FASTCALL, nullptr},
    {"set_place", function(set_place_of), METH_FASTCALL, nullptr},
    {"forget_places", function(forget_places), METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "libtutti_torch", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// Named after the file, libtutti-torch.so, with an underscore for the hyphen.
PyMODINIT_FUNC PyInit_libtutti_torch() {
  for (Name* name = Name::first; name != nullptr; name = name->next) {
    name->object = PyUnicode_InternFromString(name->text);
    if (name->object == nullptr) return nullptr;
  }
  Ref module(PyModule_Create(&definition));
  if (!module || PyModule_AddIntConstant(module.get(), "VERSION", kVersion) != 0) return nullptr;
  return module.release();
}
