#include "rpc/health.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "rpc/call_contexts.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {

absl::Status CheckHealthOn(const std::shared_ptr<grpc::Channel>& channel, SteadyTime deadline) {
  // A generic call of bytes, so that the health service's messages need not be compiled in.
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(deadline));
  // An empty HealthCheckRequest asks about the server as a whole. Its answer needs no look: a server of ours
  // that answers serves.
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);  // one without a slice is not sent
  grpc::ByteBuffer response;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  grpc::Status status;
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return FromGrpcStatus(status);
}

}  // namespace tensorcast::rpc
