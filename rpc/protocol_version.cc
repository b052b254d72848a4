#include "rpc/protocol_version.h"

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tensorcast::rpc {
namespace {

constexpr size_t kMaxShownBytes = 16;

// Each side names its version in the metadata of a call, and refuses one that differs.
template <class Metadata>
absl::Status Check(const Metadata& metadata, std::string_view who, std::string_view peer) {
  const auto said = metadata.find(kProtocolKey);
  const std::string_view version = said == metadata.end()
                                       ? std::string_view()
                                       : std::string_view(said->second.data(), said->second.size());
  // The texts are compared, not the numbers: there is one way to write a version.
  if (version == kProtocolText) return absl::OkStatus();
  // A text from the peer: cut, and escaped for terminals and logs.
  const std::string theirs =
      version.empty()
          ? "names no version"
          : absl::StrCat("has version ", absl::Utf8SafeCEscape(version.substr(0, kMaxShownBytes)));
  return absl::FailedPreconditionError(absl::StrCat(
      "compare protocol versions: the ", who, " at ", peer, " ", theirs, ", and this process has version ",
      kProtocolVersion,
      "; upgrade the older process: clients, daemons and the global store need the same version"));
}

}  // namespace

absl::Status CheckCallersVersion(const grpc::ServerContextBase& call) {
  return Check(call.client_metadata(), "caller", call.peer());
}

absl::Status CheckServersVersion(const grpc::ClientContext& call) {
  return Check(call.GetServerInitialMetadata(), "server", call.peer());
}

}  // namespace tensorcast::rpc
