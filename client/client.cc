#include "tensorcast/client.h"

#include <utility>

#include "base/status.h"
#include "client/daemon_link.h"
#include "client/keys.h"
#include "client/put.h"
#include "client/session.h"
#include "otel/api/span.h"

namespace tensorcast::client {
namespace {

class ClientImpl final : public Client {
 public:
  explicit ClientImpl(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  absl::StatusOr<std::unique_ptr<Replica>> Get(const RequestContext& context, std::string_view artifact,
                                               const GetOptions& options) override {
    return RunGet(*core_, context, artifact, options);
  }
  std::unique_ptr<PendingGet> StartGet(const RequestContext& context, std::string_view artifact,
                                       const GetOptions& options) override {
    return StartGetThread(core_, context, artifact, options);
  }

  absl::StatusOr<PutResult> Put(const RequestContext& context, std::span<const PutTensor> tensors,
                                const std::map<std::string, std::string>& metadata,
                                const PutOptions& options) override {
    return RunPut(link(), context, tensors, metadata, options);
  }
  absl::StatusOr<PutResult> Import(const RequestContext& context, const std::string& path,
                                   const PutOptions& options) override {
    return RunImport(link(), context, path, options);
  }

  absl::StatusOr<KeyInfo> BindKey(const RequestContext& context, std::string_view key,
                                  std::string_view artifact_id,
                                  std::optional<uint64_t> expected_revision) override {
    return InSpan("Client/BindKey", context, [&](const RequestContext& traced) {
      return RunBindKey(link(), traced, key, artifact_id, expected_revision);
    });
  }
  absl::StatusOr<KeyInfo> ResolveKey(const RequestContext& context, std::string_view key) override {
    return InSpan("Client/ResolveKey", context,
                  [&](const RequestContext& traced) { return RunResolveKey(link(), traced, key); });
  }
  absl::Status DeleteKey(const RequestContext& context, std::string_view key,
                         std::optional<uint64_t> expected_revision) override {
    return InSpan("Client/DeleteKey", context, [&](const RequestContext& traced) {
      return RunDeleteKey(link(), traced, key, expected_revision);
    });
  }
  absl::StatusOr<std::vector<KeyInfo>> ListKeys(const RequestContext& context,
                                                std::string_view prefix) override {
    return InSpan("Client/ListKeys", context,
                  [&](const RequestContext& traced) { return RunListKeys(link(), traced, prefix); });
  }
  absl::Status WatchKeys(const RequestContext& context, std::string_view prefix,
                         std::function<bool(const KeyInfo&)> on_key) override {
    return RunWatchKeys(link(), context, prefix, on_key);
  }

 private:
  DaemonLink& link() const { return *core_->link; }

  const std::shared_ptr<Core> core_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  TC_ASSIGN_OR_RETURN(auto link,
                      DaemonLink::Connect(options.daemon, options.connect_timeout, options.cancellation));
  return std::make_unique<ClientImpl>(
      std::make_shared<Core>(std::move(link), options.devices, options.telemetry));
}

}  // namespace tensorcast::client
