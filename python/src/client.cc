// What programs do with a store: transfers and keys, as methods of Client that each start a call and return.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "python/src/connection.h"
#include "python/src/messages.h"
#include "python/src/put_tensors.h"
#include "python/src/replica.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

using Text = const std::string&;
using Number = std::optional<uint64_t>;

// What a program reads of a key.
nb::object DictOfKey(const client::KeyInfo& key) {
  nb::dict made;
  made["name"] = key.name;
  made["artifact_id"] = key.artifact_id;
  made["revision"] = key.revision;
  // Seconds since 1970, as time.time() has them.
  made["updated"] = absl::ToDoubleSeconds(key.updated - absl::UnixEpoch());
  made["deleted"] = key.deleted;
  made["unconfirmed"] = key.unconfirmed;
  made["files_id"] = key.files_id;
  made["keep"] = key.keep;
  const auto id_of = [](const client::KeyInfo::Version& version) { return version.artifact_id; };
  made["earlier"] = nb::tuple(ListOf(key.earlier, id_of));
  return made;
}

nb::object DictOfPut(const client::PutResult& put) {
  nb::dict made;
  made["artifact_id"] = put.artifact_id;
  made["replica_id"] = put.replica_id;
  made["existed"] = put.existed;
  made["key_revision"] = put.key_revision;
  made["files_id"] = put.files_id;
  made["transfer"] = TransferSummary(put.transfer);
  made["difference"] = nb::none();
  if (put.difference.has_value()) {
    nb::dict difference;
    difference["artifact_id"] = put.difference->artifact_id;
    difference["base_id"] = put.difference->base_id;
    difference["target_id"] = put.difference->target_id;
    difference["image_bytes"] = put.difference->image_bytes;
    made["difference"] = difference;
  }
  made["no_difference"] = put.no_difference;
  return made;
}

bool IsGpu(std::string_view location) { return location.starts_with("gpu"); }

// Makes a replica of Python, which keeps the connection and so the runtime that opened its memory.
auto ReplicaMaker(const Caller& to) {
  return [connection = to.connection](std::unique_ptr<client::Replica> replica) {
    return MakeReplica(std::move(replica), connection);
  };
}

// Memory of a GPU is opened by this process, which needs the CUDA runtime. All else goes without loading it.
absl::StatusOr<Maker> Get(const Caller& to, Text artifact, client::GetOptions get) {
  TC_ASSIGN_OR_RETURN(client::Client* const chosen, to.Choose(get.attach && IsGpu(get.location)));
  get.on_progress = to.OnProgress();
  return Made(chosen->Get(to.context, artifact, get), ReplicaMaker(to));
}

absl::StatusOr<Maker> GetFiles(const Caller& to, Text key, client::GetOptions get) {
  get.on_progress = to.OnProgress();
  return Made(to.plain().GetFiles(to.context, key, get), ReplicaMaker(to));
}

absl::StatusOr<Maker> GetAt(const Caller& to, Text artifact, const std::vector<std::string>& locations,
                            client::GetOptions get) {
  // One client serves all locations, so one GPU among them is enough to need the runtime.
  TC_ASSIGN_OR_RETURN(client::Client* const chosen, to.Choose(std::ranges::any_of(locations, IsGpu)));
  get.on_progress = to.OnProgress();
  return Made(chosen->GetAt(to.context, artifact, locations, get),
              [make = ReplicaMaker(to)](std::vector<std::unique_ptr<client::Replica>> replicas) {
                return ListOf(std::move(replicas), [&](auto& replica) { return make(std::move(replica)); });
              });
}

absl::StatusOr<Maker> Import(const Caller& to, Text path, client::PutOptions put) {
  put.on_progress = to.OnProgress();
  return Made(to.plain().Import(to.context, path, put), DictOfPut);
}

// The only call that borrows memory of Python: all others take texts and numbers, which are copied.
Call Put(const Client& client, const nb::list& tensors, const std::map<std::string, std::string>& metadata,
         client::PutOptions put, const CallOptions& options) {
  // The GIL is held here: the work then reads the arrays' memory without it. The call keeps them until it has
  // ended.
  PutTensors borrowed = BorrowTensors(tensors);
  const auto on_gpu = [](const client::PutTensor& tensor) { return static_cast<bool>(tensor.device); };
  return Start(
      client, options,
      [=, tensors = std::move(borrowed.tensors)](const Caller& to) mutable -> absl::StatusOr<Maker> {
        TC_ASSIGN_OR_RETURN(client::Client* const chosen, to.Choose(std::ranges::any_of(tensors, on_gpu)));
        put.on_progress = to.OnProgress();
        return Made(chosen->Put(to.context, tensors, metadata, put), DictOfPut);
      },
      std::move(borrowed.keeper));
}

void BindKeys(nb::class_<Client>& type) {
  type.def("find_imported", Method<std::string>([](const Caller& to, Text path) {
             return Made(to.plain().FindImported(to.context, path), [](const client::ImportedFile& found) {
               return nb::make_tuple(found.artifact_id, found.files);
             });
           }),
           nb::arg("path"), nb::kw_only(), nb::arg("options"),
           "A call that returns the artifact id and the number of files.");
  type.def("resolve_key", Method<std::string, bool>([](const Caller& to, Text key, bool confirmed) {
             return Made(to.plain().ResolveKey(to.context, key, confirmed), DictOfKey);
           }),
           nb::arg("key"), nb::kw_only(), nb::arg("confirmed"), nb::arg("options"));
  type.def(
      "bind_key",
      Method<std::string, std::string, Number, std::optional<uint32_t>>(
          [](const Caller& to, Text key, Text artifact_id, Number revision, std::optional<uint32_t> keep) {
            return Made(to.plain().BindKey(to.context, key, artifact_id, revision, keep), DictOfKey);
          }),
      nb::arg("key"), nb::arg("artifact_id"), nb::kw_only(), nb::arg("expected_revision").none(),
      nb::arg("keep").none(), nb::arg("options"));
  type.def("delete_key", Method<std::string, Number>([](const Caller& to, Text key, Number revision) {
             return Made(to.plain().DeleteKey(to.context, key, revision));
           }),
           nb::arg("key"), nb::kw_only(), nb::arg("expected_revision").none(), nb::arg("options"));
  type.def("list_keys", Method<std::string>([](const Caller& to, Text prefix) {
             return Made(to.plain().ListKeys(to.context, prefix),
                         [](const std::vector<client::KeyInfo>& keys) { return ListOf(keys, DictOfKey); });
           }),
           nb::arg("prefix"), nb::kw_only(), nb::arg("options"));
  type.def("watch_keys", Method<std::string>([](const Caller& to, Text prefix) {
             return Made(to.plain().WatchKeys(to.context, prefix, [&](const client::KeyInfo& key) {
               // The key is copied: the dictionary is made later, with the GIL.
               to.listener.OnNews([key] { return DictOfKey(key); });
               return true;
             }));
           }),
           nb::arg("prefix"), nb::kw_only(), nb::arg("options"),
           "A call with news: each is a key, as list_keys returns it.");
}

}  // namespace

void BindTransfers(nb::class_<Client>& type) {
  type.def("get", Method<std::string, client::GetOptions>(Get), nb::arg("artifact"), nb::arg("get"),
           nb::kw_only(), nb::arg("options"), "A call that returns a Replica.");
  type.def("get_files", Method<std::string, client::GetOptions>(GetFiles), nb::arg("key"), nb::arg("get"),
           nb::kw_only(), nb::arg("options"),
           "A call that returns a Replica in which each tensor is a file.");
  type.def("get_at", Method<std::string, std::vector<std::string>, client::GetOptions>(GetAt),
           nb::arg("artifact"), nb::arg("locations"), nb::arg("get"), nb::kw_only(), nb::arg("options"),
           "A call that returns a list of Replica, one for each location, or an error for all.");
  type.def("import_files", Method<std::string, client::PutOptions>(Import), nb::arg("path"), nb::arg("put"),
           nb::kw_only(), nb::arg("options"),
           "A call that returns a dictionary. The daemon reads the files.");
  type.def(
      "put", &Put, nb::arg("tensors"), nb::arg("metadata"), nb::arg("put"), nb::kw_only(), nb::arg("options"),
      nb::sig("def put(self, tensors: list[tuple[str, str | None, collections.abc.Sequence[int] | None, "
              "typing.Any]], metadata: collections.abc.Mapping[str, str], put: PutOptions, *, "
              "options: CallOptions) -> Call"),
      "A call that returns a dictionary. For each tensor: the name, the dtype and shape (None: those of the\n"
      "array), and the packed array.");
  BindKeys(type);
}

}  // namespace tensorcast::python
