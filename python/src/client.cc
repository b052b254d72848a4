#include "python/src/client.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "client/admin.h"
#include "python/src/call.h"
#include "python/src/errors.h"
#include "python/src/fork.h"
#include "python/src/messages.h"
#include "python/src/put_tensors.h"
#include "python/src/replica.h"
#include "rpc/convert/convert.h"
#include "tensorcast/client.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

// What every call may have.
struct CallOptions {
  double timeout_s = -1;
  std::string traceparent;
};

// The connections to one daemon. What is for programs of the host alone is made when it is first wanted: the
// CUDA runtime, which takes a while and memory of each GPU, and the connection for administration.
// Thread-safe.
class Connection {
 public:
  static absl::StatusOr<std::unique_ptr<Connection>> Open(client::ClientOptions options) {
    auto connection = std::unique_ptr<Connection>(new Connection(std::move(options)));
    TC_ASSIGN_OR_RETURN(connection->plain_, client::Client::Connect(connection->options_));
    return connection;
  }

  client::Client& plain() const { return *plain_; }

  absl::StatusOr<client::Client*> WithGpus(const Cancellation& cancellation) ABSL_LOCKS_EXCLUDED(mutex_) {
    client::ClientOptions options = options_;
    options.cancellation = cancellation;  // of the call that wants it, not of the one that connected first
    {
      absl::MutexLock lock(&mutex_);
      if (with_gpus_ != nullptr) return with_gpus_.get();
      if (devices_ == nullptr) {
        TC_ASSIGN_OR_RETURN(devices_, CreateCudaRuntime());
      }
      options.devices = devices_.get();
    }
    TC_ASSIGN_OR_RETURN(std::unique_ptr<client::Client> connected, client::Client::Connect(options));
    absl::MutexLock lock(&mutex_);
    if (with_gpus_ == nullptr) with_gpus_ = std::move(connected);
    return with_gpus_.get();
  }

  absl::StatusOr<client::AdminClient*> Admin(const Cancellation& cancellation) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (admin_ != nullptr) return admin_.get();
    }
    TC_ASSIGN_OR_RETURN(std::unique_ptr<client::AdminClient> connected,
                        client::AdminClient::Connect(options_.daemon, options_.connect_timeout, cancellation,
                                                     options_.certificates));
    absl::MutexLock lock(&mutex_);
    if (admin_ == nullptr) admin_ = std::move(connected);
    return admin_.get();
  }

 private:
  explicit Connection(client::ClientOptions options) : options_(std::move(options)) {}

  const client::ClientOptions options_;
  absl::Mutex mutex_;
  // Before the clients that use it.
  std::unique_ptr<DeviceRuntime> devices_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<client::Client> plain_;
  std::unique_ptr<client::Client> with_gpus_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<client::AdminClient> admin_ ABSL_GUARDED_BY(mutex_);
};

struct Client {
  std::shared_ptr<Connection> connection;
  ProcessMark process;
};

// What a program reads of a key.
nb::object DictOfKey(const client::KeyInfo& key) {
  nb::dict made;
  made["name"] = key.name;
  made["artifact_id"] = key.artifact_id;
  made["revision"] = key.revision;
  made["updated"] = absl::ToDoubleSeconds(key.updated - absl::UnixEpoch());
  made["deleted"] = key.deleted;
  made["unconfirmed"] = key.unconfirmed;
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

// `convert(value)` when the result is asked for.
template <class T, class Convert>
absl::StatusOr<Maker> Made(absl::StatusOr<T> result, Convert convert) {
  if (!result.ok()) return result.status();
  return Maker(
      [value = *std::move(result), convert]() mutable { return nb::object(convert(std::move(value))); });
}
absl::StatusOr<Maker> Made(const absl::Status& status) {
  if (!status.ok()) return status;
  return Maker([] { return nb::object(nb::none()); });
}

// Starts `work(connection, context, listener)`.
template <class Work>
Call Start(const Client& client, const CallOptions& options, Work work, nb::object borrowed = nb::none()) {
  client.process.Check();
  return Call(
      [connection = client.connection, work = std::move(work)](
          const RequestContext& context, const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
        return work(*connection, context, listener);
      },
      options.timeout_s, options.traceparent, std::move(borrowed));
}

// The same for what only the administration's client can do.
template <class Work>
Call StartAdmin(const Client& client, const CallOptions& options, Work work) {
  return Start(client, options,
               [work = std::move(work)](Connection& connection, const RequestContext& context,
                                        const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
                 TC_ASSIGN_OR_RETURN(client::AdminClient* const admin,
                                     connection.Admin(context.cancellation));
                 return work(*admin, context, listener);
               });
}

bool IsGpu(std::string_view location) { return location.starts_with("gpu"); }

Call Connect(const std::string& daemon, double connect_timeout_s,
             const client::ClientCertificates& certificates) {
  // gRPC does not survive a fork: of all processes that have a copy of it, the first that used it may.
  static const ProcessMark first;
  first.Check();
  return Call(
      [daemon, certificates, connect_timeout_s](const RequestContext& context, const Call::Listener&) {
        return Made(Connection::Open({.daemon = daemon,
                                      .certificates = certificates,
                                      .connect_timeout = absl::Seconds(connect_timeout_s),
                                      .cancellation = context.cancellation}),
                    [](std::unique_ptr<Connection> connection) {
                      return nb::cast(Client{.connection = LeftAloneAfterFork(std::move(connection))});
                    });
      },
      /*timeout_s=*/-1, /*traceparent=*/"");
}

// What was put or got stays, where that is asked for.
absl::Status PinIf(bool pin, const Connection& connection, const RequestContext& context,
                   const std::string& replica_id) {
  return pin ? connection.plain().SetPinned(context, replica_id, true) : absl::OkStatus();
}

Call Get(const Client& client, const std::string& artifact, client::GetOptions get, bool pin,
         const CallOptions& options) {
  return Start(client, options,
               [artifact, get = std::move(get), pin, shared = client.connection](
                   Connection& connection, const RequestContext& context,
                   const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
                 client::Client* chosen = &connection.plain();
                 if (get.attach && IsGpu(get.location)) {
                   TC_ASSIGN_OR_RETURN(chosen, connection.WithGpus(context.cancellation));
                 }
                 get.on_progress = [&](const TransferProgress& progress) { listener.OnProgress(progress); };
                 TC_ASSIGN_OR_RETURN(std::unique_ptr<client::Replica> got,
                                     chosen->Get(context, artifact, get));
                 TC_RETURN_IF_ERROR(PinIf(pin, connection, context, got->replica_id()));
                 return Made<std::unique_ptr<client::Replica>>(
                     std::move(got), [shared](std::unique_ptr<client::Replica> replica) {
                       return MakeReplica(std::move(replica), shared);
                     });
               });
}

Call GetAt(const Client& client, const std::string& artifact, const std::vector<std::string>& locations,
           client::GetOptions get, bool pin, const CallOptions& options) {
  return Start(client, options,
               [artifact, locations, get = std::move(get), pin, shared = client.connection](
                   Connection& connection, const RequestContext& context,
                   const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
                 client::Client* chosen = &connection.plain();
                 if (std::ranges::any_of(locations, IsGpu)) {
                   TC_ASSIGN_OR_RETURN(chosen, connection.WithGpus(context.cancellation));
                 }
                 get.on_progress = [&](const TransferProgress& progress) { listener.OnProgress(progress); };
                 TC_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<client::Replica>> got,
                                     chosen->GetAt(context, artifact, locations, get));
                 for (const std::unique_ptr<client::Replica>& replica : got) {
                   TC_RETURN_IF_ERROR(PinIf(pin, connection, context, replica->replica_id()));
                 }
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

Call Import(const Client& client, const std::string& path, client::PutOptions put, bool pin,
            const CallOptions& options) {
  return Start(
      client, options,
      [path, put = std::move(put), pin](Connection& connection, const RequestContext& context,
                                        const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
        put.on_progress = [&](const TransferProgress& progress) { listener.OnProgress(progress); };
        TC_ASSIGN_OR_RETURN(client::PutResult result, connection.plain().Import(context, path, put));
        TC_RETURN_IF_ERROR(PinIf(pin, connection, context, result.replica_id));
        return Made<client::PutResult>(std::move(result), DictOfPut);
      });
}

Call Put(const Client& client, const nb::list& tensors, const std::map<std::string, std::string>& metadata,
         client::PutOptions put, bool pin, const CallOptions& options) {
  PutTensors borrowed = BorrowTensors(tensors);
  return Start(
      client, options,
      [borrowed = std::move(borrowed.tensors), metadata, put = std::move(put), pin](
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
        TC_RETURN_IF_ERROR(PinIf(pin, connection, context, result.replica_id));
        return Made<client::PutResult>(std::move(result), DictOfPut);
      },
      std::move(borrowed.keeper));
}

client::PutOptions PutOptionsOf(const std::optional<std::string>& key,
                                std::optional<uint64_t> expected_revision, bool durable,
                                const std::string& location, bool wait_for_space, bool verify) {
  return {.key = key,
          .expected_revision = expected_revision,
          .durable = durable,
          .location = location,
          .wait_for_space = wait_for_space,
          .verify = verify};
}

void BindOptions(nb::module_& module) {
  nb::class_<CallOptions>(module, "CallOptions", "What every call may have.")
      .def(
          "__init__",
          [](CallOptions* options, std::optional<double> timeout, const std::string& traceparent) {
            new (options) CallOptions{.timeout_s = timeout.value_or(-1), .traceparent = traceparent};
          },
          nb::arg("timeout") = nb::none(), nb::arg("traceparent") = "");
  nb::class_<client::ClientCertificates>(module, "Certificates",
                                         "PEM files that make connections to host:port mutual TLS.")
      .def(
          "__init__",
          [](client::ClientCertificates* certificates, const std::string& ca, const std::string& certificate,
             const std::string& key, const std::string& trust_domain) {
            new (certificates) client::ClientCertificates{
                .ca = ca, .certificate = certificate, .key = key, .trust_domain = trust_domain};
          },
          nb::arg("ca") = "", nb::arg("certificate") = "", nb::arg("key") = "", nb::arg("trust_domain") = "");
}

void BindTransfers(nb::class_<Client>& type) {
  type.def(
      "get",
      [](const Client& client, const std::string& artifact, const std::string& location,
         const std::vector<std::string>& tensors, const std::string& lane, bool wait_for_space, bool attach,
         bool pin, const CallOptions& options) {
        return Get(client, artifact,
                   {.location = location,
                    .lane = lane,
                    .wait_for_space = wait_for_space,
                    .attach = attach,
                    .tensors = tensors,
                    .copy_on_write = true},
                   pin, options);
      },
      nb::arg("artifact"), nb::kw_only(), nb::arg("location"), nb::arg("tensors"), nb::arg("lane"),
      nb::arg("wait_for_space"), nb::arg("attach"), nb::arg("pin"), nb::arg("options"),
      "A call that results in a Replica.");
  type.def(
      "get_at",
      [](const Client& client, const std::string& artifact, const std::vector<std::string>& locations,
         const std::vector<std::string>& tensors, const std::string& lane, bool wait_for_space, bool pin,
         const CallOptions& options) {
        return GetAt(
            client, artifact, locations,
            {.lane = lane, .wait_for_space = wait_for_space, .tensors = tensors, .copy_on_write = true}, pin,
            options);
      },
      nb::arg("artifact"), nb::kw_only(), nb::arg("locations"), nb::arg("tensors"), nb::arg("lane"),
      nb::arg("wait_for_space"), nb::arg("pin"), nb::arg("options"),
      "A call that results in a list of Replica: one for each location, all or none.");
  type.def(
      "import_files",
      [](const Client& client, const std::string& path, const std::optional<std::string>& key,
         std::optional<uint64_t> expected_revision, bool durable, const std::string& location,
         bool wait_for_space, bool verify, bool pin, const CallOptions& options) {
        return Import(client, path,
                      PutOptionsOf(key, expected_revision, durable, location, wait_for_space, verify), pin,
                      options);
      },
      nb::arg("path"), nb::kw_only(), nb::arg("key").none(), nb::arg("expected_revision").none(),
      nb::arg("durable"), nb::arg("location"), nb::arg("wait_for_space"), nb::arg("verify"), nb::arg("pin"),
      nb::arg("options"), "A call that results in a dictionary: the daemon reads the files itself.");
  type.def(
      "put",
      [](const Client& client, const nb::list& tensors, const std::map<std::string, std::string>& metadata,
         const std::optional<std::string>& key, std::optional<uint64_t> expected_revision, bool durable,
         const std::string& location, bool wait_for_space, bool pin, const CallOptions& options) {
        return Put(client, tensors, metadata,
                   PutOptionsOf(key, expected_revision, durable, location, wait_for_space, /*verify=*/false),
                   pin, options);
      },
      nb::arg("tensors"), nb::kw_only(), nb::arg("metadata"), nb::arg("key").none(),
      nb::arg("expected_revision").none(), nb::arg("durable"), nb::arg("location"), nb::arg("wait_for_space"),
      nb::arg("pin"), nb::arg("options"),
      nb::sig("def put(self, tensors: list[tuple[str, str | None, collections.abc.Sequence[int] | None, "
              "typing.Any]], *, metadata: collections.abc.Mapping[str, str], key: str | None, "
              "expected_revision: int | None, durable: bool, location: str, wait_for_space: bool, "
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
      [](const Client& client, const std::string& key, const CallOptions& options) {
        return Start(client, options,
                     [key](Connection& connection, const RequestContext& context, const Call::Listener&) {
                       return Made(connection.plain().ResolveKey(context, key), DictOfKey);
                     });
      },
      nb::arg("key"), nb::kw_only(), nb::arg("options"));
  type.def(
      "bind_key",
      [](const Client& client, const std::string& key, const std::string& artifact_id,
         std::optional<uint64_t> expected_revision, const CallOptions& options) {
        return Start(client, options,
                     [=](Connection& connection, const RequestContext& context, const Call::Listener&) {
                       return Made(connection.plain().BindKey(context, key, artifact_id, expected_revision),
                                   DictOfKey);
                     });
      },
      nb::arg("key"), nb::arg("artifact_id"), nb::kw_only(), nb::arg("expected_revision").none(),
      nb::arg("options"));
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
      "A call whose news are keys, as list_keys has them.");
}

// A call of the administration whose result is a message, or several.
template <class T>
absl::StatusOr<Maker> MadeMessage(absl::StatusOr<T> result) {
  return Made(std::move(result), [](const T& message) { return DictOf(message); });
}
template <class T>
absl::StatusOr<Maker> MadeMessages(absl::StatusOr<std::vector<T>> result) {
  return Made(std::move(result), [](const std::vector<T>& messages) {
    nb::list made;
    for (const T& message : messages) made.append(DictOf(message));
    return made;
  });
}

using Targets = std::vector<std::pair<std::string, std::string>>;

template <class Request>
absl::Status AddTargets(const Targets& targets, Request& request) {
  for (const auto& [node, location] : targets) {
    TC_ASSIGN_OR_RETURN(const Location parsed, Location::Parse(location));
    auto& target = *request.add_targets();
    target.set_node_id(node);
    *target.mutable_location() = rpc::ToProto(parsed);
  }
  return absl::OkStatus();
}

void BindAdministration(nb::class_<Client>& type) {
  type.def(
      "status",
      [](const Client& client, const CallOptions& options) {
        return StartAdmin(client, options,
                          [](client::AdminClient& admin, const RequestContext& context,
                             const Call::Listener&) { return MadeMessage(admin.GetStatus(context)); });
      },
      nb::kw_only(), nb::arg("options"), "GetStatusResponse of proto/daemon.proto, as a dictionary.");
  type.def(
      "cluster_status",
      [](const Client& client, const CallOptions& options) {
        return StartAdmin(client, options,
                          [](client::AdminClient& admin, const RequestContext& context,
                             const Call::Listener&) { return MadeMessage(admin.GetClusterStatus(context)); });
      },
      nb::kw_only(), nb::arg("options"), "GetClusterStatusResponse of proto/global_store.proto.");
  type.def(
      "list_artifacts",
      [](const Client& client, bool unkeyed_only, double min_age, const CallOptions& options) {
        return StartAdmin(
            client, options,
            [=](client::AdminClient& admin, const RequestContext& context, const Call::Listener&) {
              return MadeMessages(admin.ListArtifacts(context, unkeyed_only, absl::Seconds(min_age)));
            });
      },
      nb::kw_only(), nb::arg("unkeyed_only"), nb::arg("min_age"), nb::arg("options"));
  type.def(
      "list_replicas",
      [](const Client& client, const std::string& artifact_id, const CallOptions& options) {
        return StartAdmin(
            client, options,
            [=](client::AdminClient& admin, const RequestContext& context, const Call::Listener&) {
              return MadeMessages(admin.ListReplicas(context, artifact_id));
            });
      },
      nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"), "Of this node; empty: of every artifact.");
  type.def(
      "delete_artifact",
      [](const Client& client, const std::string& artifact_id, bool only_if_unkeyed,
         const CallOptions& options) {
        return StartAdmin(
            client, options,
            [=](client::AdminClient& admin, const RequestContext& context, const Call::Listener&) {
              return Made(admin.DeleteArtifact(context, artifact_id, only_if_unkeyed));
            });
      },
      nb::arg("artifact_id"), nb::kw_only(), nb::arg("only_if_unkeyed"), nb::arg("options"));
  type.def(
      "evict_replica",
      [](const Client& client, const std::string& replica_id, bool force, const CallOptions& options) {
        return StartAdmin(
            client, options,
            [=](client::AdminClient& admin, const RequestContext& context, const Call::Listener&) {
              return Made(admin.EvictReplica(context, replica_id, force));
            });
      },
      nb::arg("replica_id"), nb::kw_only(), nb::arg("force"), nb::arg("options"));
  type.def(
      "set_pinned",
      [](const Client& client, const std::string& replica_id, bool pinned, const CallOptions& options) {
        return Start(client, options,
                     [=](Connection& connection, const RequestContext& context, const Call::Listener&) {
                       return Made(connection.plain().SetPinned(context, replica_id, pinned));
                     });
      },
      nb::arg("replica_id"), nb::arg("pinned"), nb::kw_only(), nb::arg("options"));
  type.def(
      "explain_transfer",
      [](const Client& client, const std::string& transfer_id, const CallOptions& options) {
        return StartAdmin(
            client, options,
            [=](client::AdminClient& admin, const RequestContext& context, const Call::Listener&) {
              return MadeMessage(admin.ExplainTransfer(context, transfer_id));
            });
      },
      nb::arg("transfer_id"), nb::kw_only(), nb::arg("options"),
      "ExplainTransferResponse of proto/daemon.proto.");
}

void BindWishes(nb::class_<Client>& type) {
  type.def(
      "replicate",
      [](const Client& client, const std::string& artifact_id, const Targets& targets,
         const std::string& lane, const CallOptions& options) {
        return StartAdmin(client, options,
                          [=](client::AdminClient& admin, const RequestContext& context,
                              const Call::Listener&) -> absl::StatusOr<Maker> {
                            v1::ReplicateArtifactRequest request;
                            request.set_artifact_id(artifact_id);
                            request.set_lane(lane);
                            TC_RETURN_IF_ERROR(AddTargets(targets, request));
                            return MadeMessage(admin.Replicate(context, request));
                          });
      },
      nb::arg("artifact_id"), nb::arg("targets"), nb::kw_only(), nb::arg("lane"), nb::arg("options"),
      "Targets are pairs of a node (its name or id) and a location.");
  type.def(
      "list_wishes",
      [](const Client& client, const std::string& artifact_id, const CallOptions& options) {
        return StartAdmin(
            client, options,
            [=](client::AdminClient& admin, const RequestContext& context, const Call::Listener&) {
              return MadeMessages(admin.ListWishes(context, artifact_id));
            });
      },
      nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"));
  type.def(
      "watch_wishes",
      [](const Client& client, const std::string& artifact_id, const CallOptions& options) {
        return StartAdmin(
            client, options,
            [=](client::AdminClient& admin, const RequestContext& context, const Call::Listener& listener) {
              return Made(admin.WatchWishes(context, artifact_id, [&](const v1::WatchWishesResponse& news) {
                listener.OnNews([news] { return nb::object(DictOf(news)); });
                return true;
              }));
            });
      },
      nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"),
      "A call whose news are WatchWishesResponse of proto/global_store.proto.");
  type.def(
      "cancel_wishes",
      [](const Client& client, const std::string& artifact_id, const Targets& targets,
         const CallOptions& options) {
        return StartAdmin(client, options,
                          [=](client::AdminClient& admin, const RequestContext& context,
                              const Call::Listener&) -> absl::StatusOr<Maker> {
                            v1::CancelWishesRequest request;
                            request.set_artifact_id(artifact_id);
                            TC_RETURN_IF_ERROR(AddTargets(targets, request));
                            return MadeMessage(admin.CancelWishes(context, request));
                          });
      },
      nb::arg("artifact_id"), nb::arg("targets"), nb::kw_only(), nb::arg("options"));
}

}  // namespace

void BindClient(nb::module_& module) {
  BindOptions(module);
  nb::class_<Client> type(module, "Client", "A connection to a store daemon; every method starts a call.");
  BindTransfers(type);
  BindKeys(type);
  BindAdministration(type);
  BindWishes(type);
  module.def("connect", &Connect, nb::arg("daemon"), nb::arg("connect_timeout"), nb::arg("certificates"),
             "A call that results in a Client.");
}

}  // namespace tensorcast::python
