#include "python/src/client.h"

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
#include "python/src/put_tensors.h"
#include "python/src/replica.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

// What a program reads of a key.
nb::object DictOfKey(const client::KeyInfo& key) {
  nb::dict made;
  made["name"] = key.name;
  made["artifact_id"] = key.artifact_id;
  made["revision"] = key.revision;
  made["updated"] = absl::ToDoubleSeconds(key.updated - absl::UnixEpoch());
  made["deleted"] = key.deleted;
  made["unconfirmed"] = key.unconfirmed;
  made["keep"] = key.keep;
  nb::list earlier;
  for (const client::KeyInfo::Version& version : key.earlier) earlier.append(version.artifact_id);
  made["earlier"] = nb::tuple(earlier);
  return made;
}

nb::object DictOfPut(const client::PutResult& put) {
  nb::dict made;
  made["artifact_id"] = put.artifact_id;
  made["replica_id"] = put.replica_id;
  made["existed"] = put.existed;
  made["key_revision"] = put.key_revision;
  made["transfer"] = TransferSummary(put.transfer);
  return made;
}

// A client with GPUs opens the CUDA runtime in this process, which costs memory and time: only calls that
// attach to GPU memory, or put from it, use one.
bool IsGpu(std::string_view location) { return location.starts_with("gpu"); }

Call Get(const Client& client, const std::string& artifact, client::GetOptions get,
         const CallOptions& options) {
  return Start(client, options,
               [artifact, get = std::move(get), shared = client.connection](
                   Connection& connection, const RequestContext& context,
                   const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
                 client::Client* chosen = &connection.plain();
                 if (get.attach && IsGpu(get.location)) {
                   TC_ASSIGN_OR_RETURN(chosen, connection.WithGpus(context.cancellation));
                 }
                 get.on_progress = [&](const TransferProgress& progress) { listener.OnProgress(progress); };
                 TC_ASSIGN_OR_RETURN(std::unique_ptr<client::Replica> got,
                                     chosen->Get(context, artifact, get));
                 return Made<std::unique_ptr<client::Replica>>(
                     std::move(got), [shared](std::unique_ptr<client::Replica> replica) {
                       return MakeReplica(std::move(replica), shared);
                     });
               });
}

Call GetAt(const Client& client, const std::string& artifact, const std::vector<std::string>& locations,
           client::GetOptions get, const CallOptions& options) {
  return Start(client, options,
               [artifact, locations, get = std::move(get), shared = client.connection](
                   Connection& connection, const RequestContext& context,
                   const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
                 client::Client* chosen = &connection.plain();
                 if (std::ranges::any_of(locations, IsGpu)) {
                   TC_ASSIGN_OR_RETURN(chosen, connection.WithGpus(context.cancellation));
                 }
                 get.on_progress = [&](const TransferProgress& progress) { listener.OnProgress(progress); };
                 TC_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<client::Replica>> got,
                                     chosen->GetAt(context, artifact, locations, get));
                 return Made<std::vector<std::unique_ptr<client::Replica>>>(
                     std::move(got), [shared](std::vector<std::unique_ptr<client::Replica>> replicas) {
                       nb::list made;
                       for (std::unique_ptr<client::Replica>& replica : replicas) {
                         made.append(MakeReplica(std::move(replica), shared));
                       }
                       return made;
                     });
               });
}

Call Import(const Client& client, const std::string& path, client::PutOptions put,
            const CallOptions& options) {
  return Start(client, options,
               [path, put = std::move(put)](Connection& connection, const RequestContext& context,
                                            const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
                 put.on_progress = [&](const TransferProgress& progress) { listener.OnProgress(progress); };
                 TC_ASSIGN_OR_RETURN(client::PutResult result, connection.plain().Import(context, path, put));
                 return Made<client::PutResult>(std::move(result), DictOfPut);
               });
}

Call Put(const Client& client, const nb::list& tensors, const std::map<std::string, std::string>& metadata,
         client::PutOptions put, const CallOptions& options) {
  PutTensors borrowed = BorrowTensors(tensors);
  return Start(
      client, options,
      [borrowed = std::move(borrowed.tensors), metadata, put = std::move(put)](
          Connection& connection, const RequestContext& context,
          const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
        client::Client* chosen = &connection.plain();
        const bool on_gpu = std::ranges::any_of(
            borrowed, [](const client::PutTensor& tensor) { return static_cast<bool>(tensor.device); });
        if (on_gpu) {
          TC_ASSIGN_OR_RETURN(chosen, connection.WithGpus(context.cancellation));
        }
        put.on_progress = [&](const TransferProgress& progress) { listener.OnProgress(progress); };
        TC_ASSIGN_OR_RETURN(client::PutResult result, chosen->Put(context, borrowed, metadata, put));
        return Made<client::PutResult>(std::move(result), DictOfPut);
      },
      std::move(borrowed.keeper));
}

client::PutOptions PutOptionsOf(const std::optional<std::string>& key,
                                std::optional<uint64_t> expected_revision, std::optional<uint32_t> keep,
                                bool durable, const std::string& location, bool wait_for_space, bool verify,
                                bool pin) {
  return {.key = key,
          .expected_revision = expected_revision,
          .keep = keep,
          .durable = durable,
          .location = location,
          .wait_for_space = wait_for_space,
          .verify = verify,
          .pin = pin};
}

void BindTransfers(nb::class_<Client>& type) {
  type.def(
      "get",
      [](const Client& client, const std::string& artifact, const std::string& location,
         const std::vector<std::string>& tensors, const std::string& lane, bool wait_for_space,
         bool confirmed, bool attach, bool pin, const CallOptions& options) {
        return Get(client, artifact,
                   {.location = location,
                    .lane = lane,
                    .wait_for_space = wait_for_space,
                    .attach = attach,
                    .tensors = tensors,
                    .copy_on_write = true,
                    .confirmed = confirmed,
                    .pin = pin},
                   options);
      },
      nb::arg("artifact"), nb::kw_only(), nb::arg("location"), nb::arg("tensors"), nb::arg("lane"),
      nb::arg("wait_for_space"), nb::arg("confirmed"), nb::arg("attach"), nb::arg("pin"), nb::arg("options"),
      "A call that results in a Replica.");
  type.def(
      "get_at",
      [](const Client& client, const std::string& artifact, const std::vector<std::string>& locations,
         const std::vector<std::string>& tensors, const std::string& lane, bool wait_for_space,
         bool confirmed, bool pin, const CallOptions& options) {
        return GetAt(client, artifact, locations,
                     {.lane = lane,
                      .wait_for_space = wait_for_space,
                      .tensors = tensors,
                      .copy_on_write = true,
                      .confirmed = confirmed,
                      .pin = pin},
                     options);
      },
      nb::arg("artifact"), nb::kw_only(), nb::arg("locations"), nb::arg("tensors"), nb::arg("lane"),
      nb::arg("wait_for_space"), nb::arg("confirmed"), nb::arg("pin"), nb::arg("options"),
      "A call that results in a list of Replica: one for each location, all or none.");
  type.def(
      "import_files",
      [](const Client& client, const std::string& path, const std::optional<std::string>& key,
         std::optional<uint64_t> expected_revision, std::optional<uint32_t> keep, bool durable,
         const std::string& location, bool wait_for_space, bool verify, bool pin,
         const CallOptions& options) {
        return Import(
            client, path,
            PutOptionsOf(key, expected_revision, keep, durable, location, wait_for_space, verify, pin),
            options);
      },
      nb::arg("path"), nb::kw_only(), nb::arg("key").none(), nb::arg("expected_revision").none(),
      nb::arg("keep").none(), nb::arg("durable"), nb::arg("location"), nb::arg("wait_for_space"),
      nb::arg("verify"), nb::arg("pin"), nb::arg("options"),
      "A call that results in a dictionary: the daemon reads the files itself.");
  type.def(
      "put",
      [](const Client& client, const nb::list& tensors, const std::map<std::string, std::string>& metadata,
         const std::optional<std::string>& key, std::optional<uint64_t> expected_revision,
         std::optional<uint32_t> keep, bool durable, const std::string& location, bool wait_for_space,
         bool pin, const CallOptions& options) {
        return Put(client, tensors, metadata,
                   PutOptionsOf(key, expected_revision, keep, durable, location, wait_for_space,
                                /*verify=*/false, pin),
                   options);
      },
      nb::arg("tensors"), nb::kw_only(), nb::arg("metadata"), nb::arg("key").none(),
      nb::arg("expected_revision").none(), nb::arg("keep").none(), nb::arg("durable"), nb::arg("location"),
      nb::arg("wait_for_space"), nb::arg("pin"), nb::arg("options"),
      nb::sig("def put(self, tensors: list[tuple[str, str | None, collections.abc.Sequence[int] | None, "
              "typing.Any]], *, metadata: collections.abc.Mapping[str, str], key: str | None, "
              "expected_revision: int | None, keep: int | None, durable: bool, location: str, "
              "wait_for_space: bool, "
              "pin: bool, options: CallOptions) -> Call"),
      "A call that results in a dictionary. Of each tensor: its name, its dtype and shape (None: those of "
      "the\n"
      "array), and its array, packed.");
}

void BindKeys(nb::class_<Client>& type) {
  type.def(
      "find_imported",
      [](const Client& client, const std::string& path, const CallOptions& options) {
        return Start(client, options,
                     [path](Connection& connection, const RequestContext& context, const Call::Listener&) {
                       return Made(connection.plain().FindImported(context, path),
                                   [](const client::ImportedFile& found) {
                                     return nb::make_tuple(found.artifact_id, found.files);
                                   });
                     });
      },
      nb::arg("path"), nb::kw_only(), nb::arg("options"),
      "A call that results in an artifact id and a number.");
  type.def(
      "resolve_key",
      [](const Client& client, const std::string& key, bool confirmed, const CallOptions& options) {
        return Start(client, options,
                     [=](Connection& connection, const RequestContext& context, const Call::Listener&) {
                       return Made(connection.plain().ResolveKey(context, key, confirmed), DictOfKey);
                     });
      },
      nb::arg("key"), nb::kw_only(), nb::arg("confirmed"), nb::arg("options"));
  type.def(
      "bind_key",
      [](const Client& client, const std::string& key, const std::string& artifact_id,
         std::optional<uint64_t> expected_revision, std::optional<uint32_t> keep,
         const CallOptions& options) {
        return Start(client, options,
                     [=](Connection& connection, const RequestContext& context, const Call::Listener&) {
                       return Made(
                           connection.plain().BindKey(context, key, artifact_id, expected_revision, keep),
                           DictOfKey);
                     });
      },
      nb::arg("key"), nb::arg("artifact_id"), nb::kw_only(), nb::arg("expected_revision").none(),
      nb::arg("keep").none(), nb::arg("options"));
  type.def(
      "delete_key",
      [](const Client& client, const std::string& key, std::optional<uint64_t> expected_revision,
         const CallOptions& options) {
        return Start(client, options,
                     [=](Connection& connection, const RequestContext& context, const Call::Listener&) {
                       return Made(connection.plain().DeleteKey(context, key, expected_revision));
                     });
      },
      nb::arg("key"), nb::kw_only(), nb::arg("expected_revision").none(), nb::arg("options"));
  type.def(
      "list_keys",
      [](const Client& client, const std::string& prefix, const CallOptions& options) {
        return Start(client, options,
                     [prefix](Connection& connection, const RequestContext& context, const Call::Listener&) {
                       return Made(connection.plain().ListKeys(context, prefix),
                                   [](const std::vector<client::KeyInfo>& keys) {
                                     nb::list made;
                                     for (const client::KeyInfo& key : keys) made.append(DictOfKey(key));
                                     return made;
                                   });
                     });
      },
      nb::arg("prefix"), nb::kw_only(), nb::arg("options"));
  type.def(
      "watch_keys",
      [](const Client& client, const std::string& prefix, const CallOptions& options) {
        return Start(
            client, options,
            [prefix](Connection& connection, const RequestContext& context, const Call::Listener& listener) {
              return Made(connection.plain().WatchKeys(context, prefix, [&](const client::KeyInfo& key) {
                listener.OnNews([key] { return DictOfKey(key); });
                return true;
              }));
            });
      },
      nb::arg("prefix"), nb::kw_only(), nb::arg("options"),
      "A call with news: each is a key, as list_keys returns it.");
}

}  // namespace

void BindClient(nb::class_<Client>& type) {
  BindTransfers(type);
  BindKeys(type);
}

}  // namespace tensorcast::python
