#include "python/src/changes.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "python/src/messages.h"
#include "python/src/replica.h"
#include "python/src/without_gil.h"
#include "tensorcast/changes.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

// What Python calls Changes. Destroyed in this order: the changes, then the target that they borrow, then
// the connection that opened it.
struct Changes {
  std::shared_ptr<Connection> connection;
  std::shared_ptr<const client::Replica> target;
  std::shared_ptr<client::Changes> changes;
};

using Memory = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The memory of a caller for each tensor of a replica, and what keeps it while a call uses it.
struct BorrowedMemory {
  std::vector<std::span<std::byte>> tensors;
  nb::object keeper;
};

// `listed` has (place of the tensor, array of its bytes) of each; the places are below `count`.
// A tensor that is not in the list keeps an empty span.
BorrowedMemory Borrow(const nb::list& listed, size_t count) {
  BorrowedMemory borrowed{.tensors = std::vector<std::span<std::byte>>(count)};
  auto arrays = std::make_unique<std::vector<Memory>>();
  for (const nb::handle item : listed) {
    const auto place = nb::cast<size_t>(item[0]);
    // There is no conversion, which would make a copy in silence.
    Memory array;
    if (place >= count || !nb::try_cast(nb::object(item[1]), array, /*convert=*/false)) {
      throw nb::type_error(
          "write tensors: a tensor is not a writable, contiguous array of bytes in host memory; pass such an "
          "array");
    }
    borrowed.tensors[place] = {reinterpret_cast<std::byte*>(array.data()), array.nbytes()};
    arrays->push_back(std::move(array));
  }
  borrowed.keeper = nb::capsule(
      arrays.release(), [](void* owned) noexcept { delete static_cast<std::vector<Memory>*>(owned); });
  return borrowed;
}

// The base is none where it is not known.
absl::StatusOr<Maker> Find(const Caller& to, const std::shared_ptr<const client::Replica>& target,
                           const std::string& base, bool compare) {
  return Made(
      client::Changes::Find(to.plain(), to.context, base, *target, {.compare = compare}),
      [connection = to.connection, target](std::unique_ptr<client::Changes> found) {
        return nb::cast(Changes{
            .connection = connection, .target = target, .changes = LeftAloneAfterFork(std::move(found))});
      });
}

nb::object Of(const Changes& changes, size_t tensor) {
  if (tensor >= changes.target->tensors().size()) {
    throw nb::index_error("read changes: the get chose no tensor with this index; indices begin at 0");
  }
  client::TensorChanges found;
  {
    const WithoutGil released;
    found = changes.changes->Of(tensor);
  }
  if (found.whole) return nb::none();
  static_assert(std::endian::native == std::endian::little);
  std::vector<std::byte> indices(found.indices.size() * sizeof(int64_t));
  std::memcpy(indices.data(), found.indices.data(), indices.size());
  return nb::make_tuple(MakeRawBytes(std::move(indices)), MakeRawBytes(std::move(found.values)));
}

Call Write(const Changes& changes, const nb::list& listed, const CallOptions& options) {
  BorrowedMemory borrowed = Borrow(listed, changes.target->tensors().size());
  return Call(
      [changes = changes.changes, tensors = std::move(borrowed.tensors)](
          const RequestContext& context, const Call::Listener&) -> absl::StatusOr<Maker> {
        return Made(changes->WriteTo(context, tensors), [](const client::WrittenChanges& written) {
          return nb::make_tuple(written.elements, written.whole_bytes);
        });
      },
      // The call keeps the arrays and the changes until its work has ended, whatever Python drops meanwhile.
      options.deadline, options.traceparent, nb::make_tuple(borrowed.keeper, nb::cast(changes)));
}

Call Differing(const nb::object& replica, const nb::list& listed, const CallOptions& options) {
  std::shared_ptr<const client::Replica> target = ReplicaOf(replica);
  BorrowedMemory borrowed = Borrow(listed, target->tensors().size());
  return Call(
      [target = std::move(target), tensors = std::move(borrowed.tensors)](
          const RequestContext& context, const Call::Listener&) -> absl::StatusOr<Maker> {
        return Made(client::Changes::Differing(context, *target, tensors),
                    [](const std::vector<size_t>& places) {
                      return ListOf(places, [](size_t place) { return place; });
                    });
      },
      options.deadline, options.traceparent, nb::make_tuple(borrowed.keeper, replica));
}

}  // namespace

void BindChanges(nb::module_& module, nb::class_<Client>& type) {
  nb::class_<Changes>(module, "Changes", "The elements that a replica does not share with another artifact.")
      .def_prop_ro("source",
                   [](const Changes& c) { return std::string(ChangesSourceName(c.changes->source())); })
      .def_prop_ro("base_id", [](const Changes& c) { return c.changes->base_id(); })
      .def_prop_ro("differences", [](const Changes& c) { return c.changes->differences(); })
      .def("of", &Of, nb::arg("tensor"),
           nb::sig("def of(self, tensor: int) -> tuple[RawBytes, RawBytes] | None"),
           "The flat indices of what changed in the tensor at this place of the replica, as int64, and the\n"
           "values there. None: the whole tensor.")
      .def("write", &Write, nb::arg("memory"), nb::kw_only(), nb::arg("options"),
           nb::sig("def write(self, memory: list[tuple[int, typing.Any]], *, options: CallOptions) -> Call"),
           "A call that returns (elements written one by one, bytes copied in rows). `memory` has for each\n"
           "tensor its index in the replica, and an array of the bytes to write.");
  module.def("differing", &Differing, nb::arg("replica"), nb::arg("memory"), nb::kw_only(),
             nb::arg("options"),
             nb::sig("def differing(replica: Replica, memory: list[tuple[int, typing.Any]], *, "
                     "options: CallOptions) -> Call"),
             "A call that returns the indices of the tensors that do not match the digests.");
  type.def(
      "find_changes",
      [](const Client& client, const nb::object& target, const std::string& base, bool compare,
         const CallOptions& options) {
        return Start(client, options, [target = ReplicaOf(target), base, compare](const Caller& to) {
          return Find(to, target, base, compare);
        });
      },
      nb::arg("target"), nb::arg("base"), nb::kw_only(), nb::arg("compare"), nb::arg("options"),
      nb::sig("def find_changes(self, target: Replica, base: str, *, compare: bool, options: CallOptions) -> "
              "Call"),
      "A call that returns Changes. Without base, or without differences and comparison: all elements.");
}

}  // namespace tensorcast::python
