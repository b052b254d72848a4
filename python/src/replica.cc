#include "python/src/replica.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "python/src/errors.h"
#include "python/src/messages.h"
#include "python/src/without_gil.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

// Destroyed in this order: the replica, then the runtime that opened it.
struct Lease {
  std::shared_ptr<void> lifetime;
  std::unique_ptr<client::Replica> replica;
};

// What Python holds of a replica. Its arrays hold the lease as well, and the lease ends with the last of
// them.
struct Replica {
  std::shared_ptr<Lease> lease;
  const client::Replica& operator*() const { return *lease->replica; }
  const client::Replica* operator->() const { return lease->replica.get(); }
};

// The buffer protocol's name of an element type (PEP 3118); null for those that it has none for.
const char* BufferFormat(DType dtype) {
  static constexpr std::pair<DType, const char*> kFormats[] = {
      {DType::kBool, "?"}, {DType::kU8, "B"},  {DType::kI8, "b"},  {DType::kU16, "H"}, {DType::kI16, "h"},
      {DType::kF16, "e"},  {DType::kU32, "I"}, {DType::kI32, "i"}, {DType::kF32, "f"}, {DType::kU64, "Q"},
      {DType::kI64, "q"},  {DType::kF64, "d"}, {DType::kC64, "Zf"}};
  const auto* const found = std::ranges::find(kFormats, dtype, &std::pair<DType, const char*>::first);
  return found == std::end(kFormats) ? nullptr : found->second;
}

// A tensor of a replica.
class Array {
 public:
  Array(std::shared_ptr<Lease> lease, const client::TensorView& view)
      : lease_(std::move(lease)), view_(view), shape_(view.shape.begin(), view.shape.end()) {}

  const client::TensorView& view() const { return view_; }
  bool on_device() const { return lease_->replica->location().kind == LocationKind::kGpu; }
  std::string device() const { return lease_->replica->location().ToString(); }
  bool attached() const { return view_.host.data() != nullptr || view_.device || view_.nbytes == 0; }

  // The bytes of a tensor in host memory, to be read.
  std::byte* data() const {
    return const_cast<std::byte*>(view_.host.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  }

  // Whether libraries without read-only tensors may have the memory itself, which is mapped copy-on-write.
  bool IsPrivate() const { return on_device() || view_.nbytes == 0 || lease_->replica->writable(); }
  // What such libraries get: that memory, else a copy, the same for all of them.
  std::byte* PrivateData() {
    if (IsPrivate()) return data();
    // Copy releases the GIL, so another thread may copy at the same time.
    if (copy_ == nullptr) {
      std::shared_ptr<std::byte> made = Copy();
      if (copy_ == nullptr) copy_ = std::move(made);  // of threads that copied meanwhile the first wins
    }
    return copy_.get();
  }

  client::DlpackView Dlpack() const {
    absl::StatusOr<client::DlpackView> described = lease_->replica->Dlpack(view_);
    if (!described.ok()) Raise(described.status());
    return *std::move(described);
  }

  // In bytes, for the buffer protocol, which borrows them.
  const std::vector<Py_ssize_t>& shape() const { return shape_; }
  // The strides are made when they are first asked for: most arrays are never read by the buffer protocol.
  const std::vector<Py_ssize_t>& strides() {
    if (strides_.size() != shape_.size()) {
      strides_.resize(shape_.size());
      Py_ssize_t stride = ElementBytes();
      for (size_t i = shape_.size(); i-- > 0;) {
        strides_[i] = stride;
        stride *= shape_[i];
      }
    }
    return strides_;
  }
  Py_ssize_t ElementBytes() const { return FindDType(view_.dtype)->bits / 8; }

 private:
  std::shared_ptr<std::byte> Copy() const {
    const WithoutGil released;
    // A cache line, as numpy and torch align their own memory.
    constexpr std::align_val_t kAlignment{64};
    std::shared_ptr<std::byte> made(static_cast<std::byte*>(operator new(view_.nbytes, kAlignment)),
                                    [=](std::byte* bytes) { operator delete(bytes, kAlignment); });
    std::memcpy(made.get(), view_.host.data(), view_.nbytes);
    return made;
  }

  const std::shared_ptr<Lease> lease_;
  const client::TensorView view_;
  std::shared_ptr<std::byte> copy_;
  std::vector<Py_ssize_t> shape_;
  std::vector<Py_ssize_t> strides_;
};

// The bytes of a tensor as they lie, for what has its own idea of their type.
struct RawBytes {
  nb::object array;  // keeps the memory
  std::byte* data = nullptr;
  size_t bytes = 0;
  bool writable = false;
};

constexpr uint8_t kDlpackUint = 1;  // DLDataTypeCode

int RefuseBuffer(Py_buffer* buffer, const char* why) {
  PyErr_SetString(PyExc_BufferError, why);
  buffer->obj = nullptr;
  return -1;
}

// Python's slot for memoryview(array) and the like. On failure the protocol wants a Python error, a null
// `obj` and -1.
int GetArrayBuffer(PyObject* self, Py_buffer* buffer, int flags) noexcept {
  auto* array = nb::inst_ptr<Array>(self);
  const char* format = BufferFormat(array->view().dtype);
  if (array->on_device()) {
    return RefuseBuffer(buffer, "read a tensor's buffer: the tensor is in GPU memory; use .torch()");
  }
  if (!array->attached()) {
    return RefuseBuffer(
        buffer, "read a tensor's buffer: the replica is on disk; get the artifact with device=\"cpu\"");
  }
  if (format == nullptr) {
    return RefuseBuffer(
        buffer,
        "read a tensor's buffer: the buffer protocol has no name for this dtype; use .raw, or .torch()");
  }
  // What may be written to is the private memory (PrivateData), which the buffer protocol does not give.
  if ((flags & PyBUF_WRITABLE) != 0) {
    return RefuseBuffer(buffer,
                        "write to a tensor's buffer: tensors of the store are read-only; write to a copy");
  }
  // An empty array has an address, too, since some takers refuse a null pointer.
  static char nothing = 0;
  *buffer = Py_buffer{};
  buffer->buf = array->data() != nullptr ? static_cast<void*>(array->data()) : &nothing;
  buffer->obj = self;
  // The buffer keeps the array, and with it the lease.
  Py_INCREF(self);
  buffer->len = static_cast<Py_ssize_t>(array->view().nbytes);
  buffer->readonly = 1;
  buffer->itemsize = array->ElementBytes();
  buffer->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format) : nullptr;  // NOLINT(*-const-cast)
  buffer->ndim = static_cast<int>(array->shape().size());
  const bool shaped = (flags & PyBUF_ND) != 0;
  buffer->shape = shaped ? const_cast<Py_ssize_t*>(array->shape().data()) : nullptr;  // NOLINT(*-const-cast)
  // Only what was asked for may be filled in; the rest has to be null.
  const bool strided = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
  buffer->strides = strided ? const_cast<Py_ssize_t*>(array->strides().data()) : nullptr;  // NOLINT
  // Without a shape the taker sees one dimension.
  if (!shaped) buffer->ndim = 1;
  return 0;
}

int GetRawBuffer(PyObject* self, Py_buffer* buffer, int flags) noexcept {
  auto* raw = nb::inst_ptr<RawBytes>(self);
  static char nothing = 0;
  void* data = raw->data != nullptr ? static_cast<void*>(raw->data) : &nothing;
  return PyBuffer_FillInfo(buffer, self, data, static_cast<Py_ssize_t>(raw->bytes), raw->writable ? 0 : 1,
                           flags);
}

PyType_Slot kArraySlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(GetArrayBuffer)}, {0, nullptr}};
PyType_Slot kRawSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(GetRawBuffer)}, {0, nullptr}};

RawBytes RawOf(nb::handle self, bool writable) {
  auto& array = nb::cast<Array&>(self);
  if (array.on_device()) {
    Raise(absl::FailedPreconditionError("read raw bytes: the tensor is in GPU memory; use .torch()"));
  }
  if (!array.attached()) {
    Raise(absl::FailedPreconditionError(
        "read raw bytes: the replica is on disk; get the artifact with device=\"cpu\""));
  }
  return {.array = nb::borrow(self),
          .data = writable ? array.PrivateData() : array.data(),
          .bytes = array.view().nbytes,
          .writable = writable};
}

// A capsule of DLPack, made by nanobind's array of the same memory: read-only where the taker can be told so,
// and of memory that may be written to all the same, since some do not listen. `raw`: of the bytes as they
// lie.
nb::object DlpackCapsule(nb::handle self, const nb::kwargs& options, bool raw) {
  auto& array = nb::cast<Array&>(self);
  client::DlpackView view = array.Dlpack();
  if (raw) {
    view.type_code = kDlpackUint;
    view.type_bits = 8;
    view.shape = {static_cast<int64_t>(array.view().nbytes)};
    view.strides = {1};
  }
  // The memory cannot be mapped copy-on-write, so the taker gets a copy.
  if (!array.IsPrivate()) {
    if (options.contains("copy") && options["copy"].is(nb::bool_(false))) {
      throw nb::buffer_error(
          "dlpack of a tensor: the tensor lies in reserved huge pages, of which DLPack gets a copy; leave "
          "copy=False out");
    }
    view.data = array.PrivateData();
  }
  const std::vector<size_t> shape(view.shape.begin(), view.shape.end());
  const nb::dlpack::dtype dtype{view.type_code, view.type_bits, view.type_lanes};
  // Since version 1.0 a capsule of DLPack can say that it is read-only.
  const bool versioned = options.contains("max_version") && !options["max_version"].is_none();
  const auto capsule = [&](auto array) { return nb::cast(array).attr("__dlpack__")(**options); };
  if (versioned) {
    return capsule(nb::ndarray<nb::array_api, nb::ro>(view.data, shape.size(), shape.data(), self,
                                                      view.strides.data(), dtype, view.device_type,
                                                      view.device_id));
  }
  return capsule(nb::ndarray<nb::array_api>(view.data, shape.size(), shape.data(), self, view.strides.data(),
                                            dtype, view.device_type, view.device_id));
}

nb::tuple DlpackDevice(const Array& array) {
  const client::DlpackView view = array.Dlpack();
  return nb::make_tuple(view.device_type, view.device_id);
}

nb::tuple ShapeOf(const Array& array) {
  return nb::tuple(ListOf(array.shape(), [](Py_ssize_t size) { return size; }));
}

// What needs another library is written in Python.
nb::object InPython(const char* function, nb::handle self) {
  return nb::module_::import_("tensorcast.arrays").attr(function)(self);
}

// No bytes are touched: an array is a view of mapped memory.
nb::dict TensorsOf(const Replica& replica) {
  nb::dict tensors;
  for (const client::TensorView& view : replica->tensors()) {
    tensors[nb::str(view.name.data(), view.name.size())] = nb::cast(Array(replica.lease, view));
  }
  return tensors;
}

}  // namespace

nb::object MakeReplica(std::unique_ptr<client::Replica> replica, std::shared_ptr<void> lifetime) {
  auto lease = std::make_unique<Lease>(Lease{std::move(lifetime), std::move(replica)});
  // In a process that is forked later the lease is left to the parent.
  return nb::cast(Replica{LeftAloneAfterFork(std::move(lease))});
}

// The pointer shares the ownership of the lease, and with it of the runtime that opened the replica.
std::shared_ptr<const client::Replica> ReplicaOf(nb::handle object) {
  const std::shared_ptr<Lease>& lease = nb::cast<const Replica&>(object).lease;
  return {lease, lease->replica.get()};
}

nb::object MakeRawBytes(std::vector<std::byte> bytes) {
  auto owned = std::make_unique<std::vector<std::byte>>(std::move(bytes));
  RawBytes raw{.data = owned->data(), .bytes = owned->size(), .writable = true};
  raw.array = nb::capsule(owned.release(),
                          [](void* memory) noexcept { delete static_cast<std::vector<std::byte>*>(memory); });
  return nb::cast(std::move(raw));
}

nb::object TransferSummary(const std::optional<TransferReport>& report) {
  if (!report.has_value()) return nb::none();
  nb::dict summary;
  summary["transfer_id"] = report->transfer_id;
  summary["bytes"] = report->bytes;
  // The time runs from the request to the end, the wait in the queue included.
  summary["seconds"] = absl::ToDoubleSeconds(report->end - report->queued);
  summary["verified_chunks"] = report->verified_chunks;
  nb::list sources;
  for (const SourceReport& source : report->sources) {
    nb::dict one;
    one["type"] = std::string(SourceTypeName(source.source.type));
    one["lane"] = source.source.lane;
    one["name"] = source.source.name;
    one["bytes"] = source.bytes;
    sources.append(one);
  }
  summary["sources"] = sources;
  return summary;
}

void BindReplica(nb::module_& module) {
  nb::class_<RawBytes>(module, "RawBytes", "The bytes of a tensor, with the buffer protocol.",
                       nb::type_slots(kRawSlots))
      .def("__len__", [](const RawBytes& raw) { return raw.bytes; });

  nb::class_<Array>(
      module, "Array", nb::type_slots(kArraySlots),
      "A tensor in the store's memory: not a copy, and read-only.\n\n"
      "It has the buffer protocol and DLPack; .numpy(), .torch() and .jax() use these. Every array\n"
      "made from it keeps the lease.")
      .def_prop_ro(
          "name", [](const Array& a) { return nb::str(a.view().name.data(), a.view().name.size()); },
          nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "dtype", [](const Array& a) { return std::string(DTypeName(a.view().dtype)); },
          "The dtype as safetensors writes it: \"BF16\", \"F8_E4M3\".")
      .def_prop_ro("shape", &ShapeOf, nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro("nbytes", [](const Array& a) { return a.view().nbytes; })
      .def_prop_ro("device", &Array::device, "\"cpu\" or \"gpu:N\".")
      .def_prop_ro(
          "raw", [](nb::handle self) { return RawOf(self, false); }, nb::sig("def raw(self) -> RawBytes"),
          "The bytes in the store's order, in host memory; read-only.")
      .def(
          "private_raw", [](nb::handle self) { return RawOf(self, true); },
          nb::sig("def private_raw(self) -> RawBytes"),
          "The bytes, copy-on-write: a write makes a private page, which only arrays of this get see.\n"
          "If the weights are not `writable`, this is a copy, made once.")
      .def(
          "numpy", [](nb::handle self) { return InPython("to_numpy", self); },
          nb::sig("def numpy(self) -> typing.Any"), "The array as a read-only numpy.ndarray.")
      .def(
          "torch", [](nb::handle self) { return InPython("to_torch", self); },
          nb::sig("def torch(self) -> typing.Any"),
          "The array as a torch.Tensor. A write has the effect that private_raw describes.")
      .def(
          "jax", [](nb::handle self) { return InPython("to_jax", self); },
          nb::sig("def jax(self) -> typing.Any"), "The array as a jax.Array.")
      .def(
          "__array__",
          [](nb::handle self, nb::handle dtype, nb::handle copy) {
            return nb::module_::import_("tensorcast.arrays").attr("as_numpy")(self, dtype, copy);
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
          nb::sig("def __array__(self, dtype: typing.Any = None, copy: bool | None = None) -> typing.Any"))
      .def(
          "raw_dlpack",
          [](nb::handle self, const nb::kwargs& options) { return DlpackCapsule(self, options, true); },
          nb::sig("def raw_dlpack(self, **options: typing.Any) -> typing.Any"),
          "Like __dlpack__, for the plain bytes: for a dtype that the consumer's DLPack does not have.")
      .def(
          "__dlpack__",
          [](nb::handle self, const nb::kwargs& options) { return DlpackCapsule(self, options, false); },
          nb::sig("def __dlpack__(self, **options: typing.Any) -> typing.Any"))
      .def("__dlpack_device__", &DlpackDevice, nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("__len__",
           [](const Array& a) {
             if (a.shape().empty()) throw nb::type_error("a scalar has no length");
             return a.shape().front();
           })
      .def(
          "__repr__",
          [](nb::handle self) {
            return nb::str("<tensorcast.Array {} {} {} at {}>")
                .attr("format")(self.attr("name"), self.attr("dtype"), self.attr("shape"),
                                self.attr("device"));
          },
          nb::sig("def __repr__(self) -> str"));

  nb::class_<Replica>(module, "Replica", "A lease on a replica. Ends when no object made from it exists.")
      .def_prop_ro("artifact_id", [](const Replica& r) { return r->artifact_id(); })
      .def_prop_ro("replica_id", [](const Replica& r) { return r->replica_id(); })
      .def_prop_ro("device", [](const Replica& r) { return r->location().ToString(); })
      .def_prop_ro("nbytes", [](const Replica& r) { return r->image_bytes(); })
      .def_prop_ro("tensor_count", [](const Replica& r) { return r->tensor_count(); })
      .def_prop_ro("metadata", [](const Replica& r) { return r->metadata(); })
      .def_prop_ro("key_revision", [](const Replica& r) { return r->key_revision(); })
      .def_prop_ro("key_unconfirmed", [](const Replica& r) { return r->key_unconfirmed(); })
      .def_prop_ro("lost", [](const Replica& r) { return r->lost(); })
      .def_prop_ro("damage",
                   [](const Replica& r) {
                     const absl::Status checked = r->Check();
                     return absl::IsDataLoss(checked) ? std::string(checked.message()) : std::string();
                   })
      .def_prop_ro("writable", [](const Replica& r) { return r->writable(); })
      .def(
          "transfer", [](const Replica& r) { return TransferSummary(r->transfer()); },
          nb::sig("def transfer(self) -> dict[str, typing.Any] | None"))
      .def("tensors", &TensorsOf, nb::sig("def tensors(self) -> dict[str, Array]"),
           "The requested tensors by name, in the order of the artifact.");
}

}  // namespace tensorcast::python
