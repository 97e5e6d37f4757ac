// The short way from Python to libtutti: one call for an operation, without ctypes. calls.py loads this module, which
// lies beside libtutti, and hands it the addresses of libtutti's functions. It has only CPython's stable ABI, so that
// one binary serves every Python from 3.10 on, and nothing of torch's C++: a tensor is asked by its methods in Python.
//
// Threading: every function is called with the interpreter's lock; an operation lets go of it while it runs.
// Lifetimes: the tables below keep what they name, so that an address stands for one object as long as it is in there.
#include <Python.h>

#include <array>
#include <cstdint>
#include <utility>

#include "tutti/trace.h"
#include "tutti/tutti.h"

namespace {

// Counted with the package's (calls.py): a package that was installed at another time does without the module.
constexpr int kVersion = 2;

// A reference that is given up at the end of its scope.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    PyObject* const before = object_;
    object_ = other.release();
    Py_XDECREF(before);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  static Ref to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* release() {
    PyObject* const object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_ = nullptr;
};

// What bind() is given, in its order.
struct Bound {
  decltype(&tuttiAllReduce) all_reduce = nullptr;
  decltype(&tuttiSetPlace) set_place = nullptr;
  PyObject *tensor = nullptr, *parameter = nullptr;  // the types whose methods do nothing but answer
  PyObject* types = nullptr;                         // torch.dtype -> tuttiDataType_t
  PyObject* profiles = nullptr;                      // () -> whether torch's profiler is on
  PyObject* is_foreign = nullptr;                    // (file's name) -> whether it is no user's
  PyObject* number = nullptr;     // (what, first tensor, how many, frame or None) -> the place's number
  PyObject* fail = nullptr;       // (group, tuttiResult_t) raises
  PyObject* names = nullptr;      // all_reduce_'s operators -> tuttiRedOp_t
  PyObject* operators = nullptr;  // hash of a ReduceOp -> tuttiRedOp_t
  PyObject* options = nullptr;    // the type of an all-reduce's options
  PyObject* finished = nullptr;   // the Work of what is done
};
Bound bound;

PyObject *s_all_reduce, *s_async, *s_back, *s_comm, *s_communicator, *s_contiguous, *s_cpu, *s_data_ptr, *s_dtype,
    *s_file, *s_last, *s_numel, *s_op, *s_shape;

// ---- where the user's program calls from ----

struct Code {
  PyObject* code = nullptr;
  bool foreign = false;
};
struct Place {
  PyObject *what = nullptr, *code = nullptr, *dtype = nullptr, *shape = nullptr;
  long instruction = 0;
  Py_ssize_t tensors = 0;
  uint64_t number = 0;
};
// Each has its slot by its address; another one with the same slot takes its place.
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
  Ref frame, code;  // the user's; neither if there is none, or an exception
};

Frame user_frame() {
  Ref frame = Ref::to(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && frame.get() != Py_None) {
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.get()))));
    const int foreign = is_foreign(code.get());
    if (foreign < 0) break;
    if (foreign == 0) return {std::move(frame), std::move(code)};
    frame = Ref(PyObject_GetAttr(frame.get(), s_back));
  }
  return {};
}

// Has the place named to the library.
bool name_place(uint64_t* number, PyObject* what, PyObject* first, Py_ssize_t tensors, PyObject* frame) {
  const Ref count(PyLong_FromSsize_t(tensors));
  if (!count) return false;
  const Ref named(PyObject_CallFunctionObjArgs(bound.number, what, first, count.get(), frame, nullptr));
  if (!named) return false;
  *number = PyLong_AsUnsignedLongLong(named.get());
  return PyErr_Occurred() == nullptr;
}

bool is_at(const Place& place, PyObject* what, const Frame& at, long instruction, PyObject* dtype, PyObject* shape,
           Py_ssize_t tensors) {
  return place.what == what && place.code == at.code.get() && place.instruction == instruction &&
         place.dtype == dtype && place.tensors == tensors &&
         (place.shape == shape || PyObject_RichCompareBool(place.shape, shape, Py_EQ) == 1);
}

// From now on this thread's operations are `what`, with so many tensors, of which this is the first (or None) and has
// this type; and they come from the user's code that is nearest on the stack. False with an exception.
bool stand_at(PyObject* what, PyObject* first, PyObject* dtype, Py_ssize_t tensors) {
  const Frame at = user_frame();
  if (PyErr_Occurred() != nullptr) return false;
  uint64_t number = 0;
  if (!at.frame) {
    if (!name_place(&number, what, first, tensors, Py_None)) return false;
    bound.set_place(number);
    return true;
  }
  const Ref last(PyObject_GetAttr(at.frame.get(), s_last));
  const Ref shape(first == Py_None ? Ref::to(Py_None) : Ref(PyObject_GetAttr(first, s_shape)));
  if (!last || !shape) return false;
  const long instruction = PyLong_AsLong(last.get());
  Place& place = places[(hash_of(at.code.get()) + static_cast<size_t>(instruction)) % places.size()];
  if (!is_at(place, what, at, instruction, dtype, shape.get(), tensors)) {
    if (!name_place(&number, what, first, tensors, at.frame.get())) return false;
    keep(place.what, what);
    keep(place.code, at.code.get());
    keep(place.dtype, dtype);
    keep(place.shape, shape.get());
    place.instruction = instruction;
    place.tensors = tensors;
    place.number = number;
  }
  bound.set_place(place.number);
  return true;
}

// ---- what Python calls ----

bool is_true(const Ref& object) {
  return object && PyObject_IsTrue(object.get()) == 1;
}
Ref call(PyObject* object, PyObject* method) {
  return Ref(PyObject_CallMethodObjArgs(object, method, nullptr));
}

// The type of its elements, if it is a tensor in host memory whose elements lie one after the other and are of a type
// that Tutti has. Nothing if not, also after an exception.
Ref plain_dtype(PyObject* tensor, long* datatype) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != bound.tensor &&
      reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != bound.parameter)
    return {};
  Ref dtype(PyObject_GetAttr(tensor, s_dtype));
  PyObject* const code = dtype ? PyDict_GetItemWithError(bound.types, dtype.get()) : nullptr;
  if (code == nullptr || !is_true(Ref(PyObject_GetAttr(tensor, s_cpu))) || !is_true(call(tensor, s_contiguous)))
    return {};
  *datatype = PyLong_AsLong(code);
  return dtype;
}

// Its communicator; none if it has none any more, or is another backend's.
tuttiComm_t comm_of(PyObject* group) {
  const Ref communicator(PyObject_GetAttr(group, s_communicator));
  const Ref comm(communicator ? PyObject_GetAttr(communicator.get(), s_comm) : nullptr);
  return comm && PyLong_Check(comm.get()) != 0 ? static_cast<tuttiComm_t>(PyLong_AsVoidPtr(comm.get())) : nullptr;
}

// All-reduces: `done`, or null with an exception. None, and nothing was done, if it is not so simple: another kind of
// tensor, no operator or communicator, or torch's profiler is on. Then the ordinary way finds errors, too.
PyObject* reduce(PyObject* group, PyObject* tensor, PyObject* op, PyObject* done) {
  long datatype = 0;
  const Ref dtype = op != nullptr ? plain_dtype(tensor, &datatype) : Ref();
  const Ref profiled(dtype ? PyObject_CallFunctionObjArgs(bound.profiles, nullptr) : nullptr);
  const Ref elems(profiled && profiled.get() == Py_False ? call(tensor, s_numel) : Ref());
  const Ref address(elems ? call(tensor, s_data_ptr) : Ref());
  const tuttiComm_t comm = address ? comm_of(group) : nullptr;
  if (comm == nullptr || !stand_at(s_all_reduce, tensor, dtype.get(), 1)) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  void* const at = PyLong_AsVoidPtr(address.get());
  const size_t size = PyLong_AsSize_t(elems.get());
  const auto operation = static_cast<tuttiRedOp_t>(PyLong_AsLong(op));
  PyThreadState* const thread = PyEval_SaveThread();
  const tuttiResult_t result =
      bound.all_reduce(at, at, size, static_cast<tuttiDataType_t>(datatype), operation, comm, nullptr);
  PyEval_RestoreThread(thread);
  if (result == tuttiSuccess) return Ref::to(done).release();
  const Ref code(PyLong_FromLong(result));
  return code ? PyObject_CallFunctionObjArgs(bound.fail, group, code.get(), nullptr) : nullptr;
}

// all_reduce_(group, tensor, op's name): True when it is done.
PyObject* all_reduce_(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3 || bound.names == nullptr) Py_RETURN_NONE;
  return reduce(arguments[0], arguments[1], PyDict_GetItemWithError(bound.names, arguments[2]), Py_True);
}

// allreduce(group, tensors, options), as c10d calls it: a finished Work.
PyObject* allreduce(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) Py_RETURN_NONE;
  PyObject *const tensors = arguments[1], *const options = arguments[2];
  if (reinterpret_cast<PyObject*>(Py_TYPE(options)) != bound.options || PyList_Check(tensors) == 0 ||
      PyList_Size(tensors) != 1)
    Py_RETURN_NONE;
  const Ref later(PyObject_GetAttr(options, s_async));
  const Ref op(later && later.get() == Py_False ? PyObject_GetAttr(options, s_op) : nullptr);
  const Ref hash(op ? PyLong_FromSsize_t(PyObject_Hash(op.get())) : nullptr);
  PyObject* const number = hash ? PyDict_GetItemWithError(bound.operators, hash.get()) : nullptr;
  const Ref tensor = Ref::to(PyList_GetItem(tensors, 0));
  return reduce(arguments[0], tensor.get(), number, bound.finished);
}

// stand_at(what, first tensor or None, how many)
PyObject* stand(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3 || bound.set_place == nullptr) {
    PyErr_SetString(PyExc_TypeError, "stand_at(what, first, tensors) after bind()");
    return nullptr;
  }
  const Ref dtype(arguments[1] == Py_None ? Ref::to(Py_None) : Ref(PyObject_GetAttr(arguments[1], s_dtype)));
  if (!dtype || !stand_at(arguments[0], arguments[1], dtype.get(), PyLong_AsSsize_t(arguments[2]))) return nullptr;
  Py_RETURN_NONE;
}

// The library will not know old numbers for ever.
PyObject* forget_places(PyObject*, PyObject*) {
  for (Place& place : places) keep(place.what, nullptr);
  Py_RETURN_NONE;
}

// Once, before anything else.
PyObject* bind(PyObject*, PyObject* arguments) {
  PyObject *reduce = nullptr, *place = nullptr;
  Bound given;
  if (PyArg_ParseTuple(arguments, "OOOOOOOOOOOOO:bind", &reduce, &place, &given.tensor, &given.parameter, &given.types,
                       &given.profiles, &given.is_foreign, &given.number, &given.fail, &given.names, &given.operators,
                       &given.options, &given.finished) == 0)
    return nullptr;
  given.all_reduce = reinterpret_cast<decltype(given.all_reduce)>(PyLong_AsVoidPtr(reduce));
  given.set_place = reinterpret_cast<decltype(given.set_place)>(PyLong_AsVoidPtr(place));
  if (PyErr_Occurred() != nullptr) return nullptr;
  Py_INCREF(arguments);  // and with it all that is in there
  bound = given;
  Py_RETURN_NONE;
}

template <typename Function>
PyCFunction function(Function* f) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

PyMethodDef methods[] = {
    {"bind", function(bind), METH_VARARGS, nullptr},
    {"all_reduce_", function(all_reduce_), METH_FASTCALL, nullptr},
    {"allreduce", function(allreduce), METH_FASTCALL, nullptr},
    {"stand_at", function(stand), METH_FASTCALL, nullptr},
    {"forget_places", function(forget_places), METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "libtutti_torch", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// Its name is the file's, libtutti-torch.so, with the hyphen as Python has it.
PyMODINIT_FUNC PyInit_libtutti_torch() {
  struct {
    PyObject** name;
    const char* text;
  } const names[] = {{&s_all_reduce, "all_reduce"},
                     {&s_back, "f_back"},
                     {&s_contiguous, "is_contiguous"},
                     {&s_cpu, "is_cpu"},
                     {&s_data_ptr, "data_ptr"},
                     {&s_dtype, "dtype"},
                     {&s_file, "co_filename"},
                     {&s_last, "f_lasti"},
                     {&s_numel, "numel"},
                     {&s_shape, "shape"},
                     {&s_async, "asyncOp"},
                     {&s_op, "reduceOp"},
                     {&s_communicator, "_short"},
                     {&s_comm, "_comm"}};
  for (const auto& each : names) {
    *each.name = PyUnicode_InternFromString(each.text);
    if (*each.name == nullptr) return nullptr;
  }
  PyObject* const module = PyModule_Create(&definition);
  if (module != nullptr && PyModule_AddIntConstant(module, "VERSION", kVersion) != 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
