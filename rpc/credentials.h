// The one place that decides how connections are secured. Today: not at all, on networks that are trusted;
// mutual TLS comes here and nowhere else.
#pragma once

#include <memory>

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace tensorcast::rpc {

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials();
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials();

}  // namespace tensorcast::rpc
