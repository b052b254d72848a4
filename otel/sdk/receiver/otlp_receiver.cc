#include "otel/sdk/receiver/otlp_receiver.h"

#include <optional>
#include <utility>

#include "base/status.h"
#include "otel/sdk/receiver/export_call.h"

namespace tensorcast::otel {
namespace {

class Call final : public ExportCall {
 public:
  Call(ReceivedTelemetry* received, const grpc::GenericCallbackServerContext& context)
      : ExportCall(context), received_(received) {}

 private:
  void OnRequest() override {
    if (received_->Take(method(), request())) return Accept();
    Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not OTLP"));
  }
  void OnCancel() override {}

  ReceivedTelemetry* const received_;
};

}  // namespace

class OtlpReceiver::Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(ReceivedTelemetry* received) : received_(received) {}

  absl::Status Listen(const std::string& listen) {
    TC_ASSIGN_OR_RETURN(ExportServer server, ExportServer::Start(listen, *this));
    server_.emplace(std::move(server));
    return absl::OkStatus();
  }
  const std::string& endpoint() const { return server_->endpoint(); }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return new Call(received_, *context);
  }

 private:
  ReceivedTelemetry* const received_;
  std::optional<ExportServer> server_;  // the last, so that it goes before what its calls use
};

OtlpReceiver::OtlpReceiver(Keep keep) : ReceivedTelemetry(keep), service_(std::make_unique<Service>(this)) {}

OtlpReceiver::~OtlpReceiver() = default;

absl::StatusOr<std::unique_ptr<OtlpReceiver>> OtlpReceiver::Start(Keep keep) {
  std::unique_ptr<OtlpReceiver> receiver(new OtlpReceiver(keep));
  TC_RETURN_IF_ERROR(receiver->service_->Listen("127.0.0.1:0"));
  return receiver;
}

const std::string& OtlpReceiver::endpoint() const { return service_->endpoint(); }

}  // namespace tensorcast::otel
