#include "rpc/health.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/slice.h>

#include <memory>

#include "base/steady_time.h"
#include "rpc/credentials.h"
#include "rpc/grpc_deadline.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {

absl::Status CheckHealth(const std::string& address, absl::Duration timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  grpc::GenericStub stub(grpc::CreateCustomChannel(address, MakeChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(SteadyNow() + timeout));
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
