#include "otel/sdk/receiver/otlp_receiver.h"

#include "base/status.h"

namespace tensorcast::otel {
namespace {

class Call final : public ExportCall {
 public:
  Call(ReceivedTelemetry* received, const grpc::GenericCallbackServerContext& context)
      : ExportCall(context), received_(received) {}

 private:
  void OnRequest() override {
    if (received_->Take(method(), request())) return Accept();
    Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                        "export telemetry: the request is not OTLP; send OTLP"));
  }
  void OnCancel() override {}

  ReceivedTelemetry* const received_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OtlpReceiver>> OtlpReceiver::Start(Keep keep) {
  std::unique_ptr<OtlpReceiver> receiver(new OtlpReceiver(keep));
  TC_ASSIGN_OR_RETURN(receiver->server_,
                      ExportServer::Start("127.0.0.1:0", [received = receiver.get()](const auto& context) {
                        // It deletes itself when gRPC has done with it (ExportCall::OnDone).
                        return new Call(received, context);
                      }));
  return receiver;
}

}  // namespace tensorcast::otel
