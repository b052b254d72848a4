#include "global_store/metadata/etcd/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "etcd/rpc.grpc.pb.h"
#include "rpc/call_contexts.h"
#include "rpc/foreign_mutexes/foreign_mutexes.h"
#include "rpc/retry.h"

namespace tensorcast::global_store::etcd {
namespace {

namespace pb = etcdserverpb;

// How long a member may take until the next one is tried; meanwhile it goes on being connected to.
constexpr absl::Duration kConnect = absl::Milliseconds(250);

absl::StatusOr<std::string> ReadPem(std::string_view setting, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  // The stream catches what its buffer throws where a read fails, as that of a folder does. Iterators would
  // not.
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !text || text.view().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect to etcd: ", setting, " names ", path,
                     ", which cannot be read or is empty; name a PEM file that the global store can read"));
  }
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const ClientOptions& options) {
  if (options.ca.empty()) {
    if (options.certificate.empty() && options.key.empty()) return grpc::InsecureChannelCredentials();
    return absl::InvalidArgumentError(
        "connect to etcd: a certificate or a key is set, and no CA certificate; set global_store.etcd.ca, "
        "too");
  }
  grpc::SslCredentialsOptions tls;
  TC_ASSIGN_OR_RETURN(tls.pem_root_certs, ReadPem("global_store.etcd.ca", options.ca));
  TC_ASSIGN_OR_RETURN(tls.pem_cert_chain, ReadPem("global_store.etcd.certificate", options.certificate));
  TC_ASSIGN_OR_RETURN(tls.pem_private_key, ReadPem("global_store.etcd.key", options.key));
  return grpc::SslCredentials(tls);
}

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (absl::StrContains(status.error_message(), "database space exceeded")) {
    return absl::ResourceExhaustedError(
        absl::StrCat("write to etcd: the quota of etcd is full (", status.error_message(),
                     "); compact and defragment etcd, or raise --quota-backend-bytes, then disarm the "
                     "NOSPACE alarm (etcdctl alarm disarm)"));
  }
  return {static_cast<absl::StatusCode>(status.error_code()),
          absl::StrCat("call etcd: ", status.error_message(), "; see etcd's log")};
}

// Whether another member, or the same one a little later, may do what this one did not.
bool Passes(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::ABORTED:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return absl::StrContains(status.error_message(), "too many requests");
    case grpc::StatusCode::UNKNOWN:  // of a stream that broke
      return !absl::StrContains(status.error_message(), "etcdserver:");
    default:
      return false;
  }
}

// Its tokens end, are not known to a member that started again, and those of before a change of users or
// roles are refused (by their words, since that is an INVALID_ARGUMENT); such a call changed nothing.
bool WantsToken(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
         absl::StrContains(status.error_message(), "invalid auth token") ||
         absl::StrContains(status.error_message(), "revision of auth store is old");
}

}  // namespace

struct Client::State {
  struct Member {
    std::string endpoint;
    std::shared_ptr<grpc::Channel> channel;
  };

  // `attempt` makes the call once, on a channel, with its gRPC context.
  template <class Attempt>
  absl::Status Call(const RequestContext& context, const char* what, const Attempt& attempt);
  static bool IsConnected(const RequestContext& context, const Member& member);
  absl::Status FillContext(const RequestContext& context, const Member& member, grpc::ClientContext& call);
  absl::StatusOr<std::string> Token(const RequestContext& context, const Member& member);

  ClientOptions options;
  std::vector<Member> members;
  std::atomic<size_t> current = 0;  // the member that answered last
  absl::Mutex mutex;
  std::string token ABSL_GUARDED_BY(mutex);
};

// A connection is made only while a call waits for it: a call that fails because there is none does not.
bool Client::State::IsConnected(const RequestContext& context, const Member& member) {
  const absl::Duration max = std::min(TimeLeft(context.deadline), kConnect);
  return member.channel->WaitForConnected(rpc::ToGrpcDeadline(SteadyNow() + max));
}

absl::Status Client::State::FillContext(const RequestContext& context, const Member& member,
                                        grpc::ClientContext& call) {
  const absl::Duration left = std::min(TimeLeft(context.deadline), options.member_timeout);
  call.set_deadline(rpc::ToGrpcDeadline(SteadyNow() + left));
  if (options.user.empty()) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(const std::string known, Token(context, member));
  call.AddMetadata("token", known);
  return absl::OkStatus();
}

// One token for all calls, until etcd refuses it. Two callers may ask for one at the same time; the later
// one stays.
absl::StatusOr<std::string> Client::State::Token(const RequestContext& context, const Member& member) {
  {
    absl::MutexLock lock(&mutex);
    if (!token.empty()) return token;
  }
  grpc::ClientContext call;
  const absl::Duration left = std::min(TimeLeft(context.deadline), options.member_timeout);
  call.set_deadline(rpc::ToGrpcDeadline(SteadyNow() + left));
  pb::AuthenticateRequest request;
  request.set_name(options.user);
  request.set_password(options.password);
  pb::AuthenticateResponse response;
  const grpc::Status status = pb::Auth::NewStub(member.channel)->Authenticate(&call, request, &response);
  if (Passes(status)) {
    return absl::UnavailableError(
        absl::StrCat("authenticate with etcd: ", status.error_message(), "; see etcd's log"));
  }
  TC_RETURN_IF_ERROR(Annotate(ToStatus(status), absl::StrCat("authenticate with etcd as ", options.user)));
  absl::MutexLock lock(&mutex);
  token = response.token();
  return token;
}

// Makes the call on the member that answered last. Where that fails for a reason that passes, the next member
// is asked, and after each round of all of them the call pauses. Ends with an answer, with an error that
// another member would give too, or with the context.
template <class Attempt>
absl::Status Client::State::Call(const RequestContext& context, const char* what, const Attempt& attempt) {
  rpc::Backoff backoff({.initial = absl::Milliseconds(10), .max = absl::Milliseconds(200)});
  absl::Status last = absl::UnavailableError("no member of etcd was asked");
  bool asked_for_token = false;
  for (size_t tried = 0;; ++tried) {
    // Cancelled calls say so. A deadline that passed is reported as UNAVAILABLE with the last member's error,
    // since etcd is what does not answer.
    if (absl::Status wanted = context.Check(what); !wanted.ok()) {
      if (absl::IsCancelled(wanted)) return wanted;
      return absl::UnavailableError(absl::StrCat(
          "call ", what, " of etcd at ", absl::StrJoin(options.endpoints, ", "), ": etcd did not answer (",
          last.message(), "); start etcd, or find out why etcd is slow"));
    }
    const size_t index = current.load();
    const Member& member = members[index];
    grpc::ClientContext call;
    // The registration is declared after `call`, so that no cancellation reaches a context that is gone.
    const Cancellation::Registration cancel = context.cancellation.OnCancel([&call] { call.TryCancel(); });
    if (!IsConnected(context, member)) {
      last = absl::UnavailableError("no connection");
    } else if (last = FillContext(context, member, call); last.ok()) {
      const grpc::Status status = attempt(member.channel, call);
      if (status.ok()) return absl::OkStatus();
      last = ToStatus(status);
      // Each call gets one new token at most: a second refusal is the answer.
      if (WantsToken(status) && !options.user.empty() && !std::exchange(asked_for_token, true)) {
        absl::MutexLock lock(&mutex);
        token.clear();
        continue;
      }
      if (!Passes(status)) return last;
    } else if (!absl::IsUnavailable(last)) {
      return last;
    }
    last = Annotate(last, member.endpoint);
    // Unless another call has moved on meanwhile: it would skip a member.
    size_t expected = index;
    current.compare_exchange_strong(expected, (index + 1) % members.size());
    if ((tried + 1) % members.size() != 0) continue;
    // All of them have been asked. Its error is the deadline's, seen above.
    rpc::SleepFor(context, backoff.Next(), what).IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  if (options.endpoints.empty()) {
    return absl::InvalidArgumentError(
        "connect to etcd: no endpoint is named; set global_store.etcd.endpoints");
  }
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials, CredentialsOf(options));
  rpc::StopCheckingForeignMutexes();  // this one waits for etcd before it has a server
  auto state = std::make_unique<State>();
  state->options = options;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // etcd bounds what it keeps, not what a range holds
  // Also how long a connection may take to be made: a member that has begun to listen does not answer yet.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // gRPC would otherwise go through the proxy that the environment names.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A pool of its own: channels with the same arguments would share one connection, with its back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  for (const std::string& endpoint : options.endpoints) {
    state->members.push_back(
        {.endpoint = endpoint, .channel = grpc::CreateCustomChannel(endpoint, credentials, arguments)});
  }
  return std::unique_ptr<Client>(new Client(std::move(state)));
}

Client::Client(std::unique_ptr<State> state) : state_(std::move(state)) {}
Client::~Client() = default;

std::string Client::endpoints() const { return absl::StrJoin(state_->options.endpoints, ", "); }

absl::StatusOr<pb::RangeResponse> Client::Range(const RequestContext& context,
                                                const pb::RangeRequest& request) {
  pb::RangeResponse response;
  TC_RETURN_IF_ERROR(state_->Call(context, "Range", [&](const auto& channel, grpc::ClientContext& call) {
    return pb::KV::NewStub(channel)->Range(&call, request, &response);
  }));
  return response;
}

absl::StatusOr<pb::TxnResponse> Client::Txn(const RequestContext& context, const pb::TxnRequest& request) {
  pb::TxnResponse response;
  TC_RETURN_IF_ERROR(state_->Call(context, "Txn", [&](const auto& channel, grpc::ClientContext& call) {
    return pb::KV::NewStub(channel)->Txn(&call, request, &response);
  }));
  return response;
}

absl::Status Client::Compact(const RequestContext& context, int64_t revision) {
  pb::CompactionRequest request;
  request.set_revision(revision);
  pb::CompactionResponse response;
  return state_->Call(context, "Compact", [&](const auto& channel, grpc::ClientContext& call) {
    return pb::KV::NewStub(channel)->Compact(&call, request, &response);
  });
}

absl::StatusOr<pb::StatusResponse> Client::Status(const RequestContext& context) {
  pb::StatusResponse response;
  TC_RETURN_IF_ERROR(state_->Call(context, "Status", [&](const auto& channel, grpc::ClientContext& call) {
    return pb::Maintenance::NewStub(channel)->Status(&call, pb::StatusRequest(), &response);
  }));
  return response;
}

absl::StatusOr<Client::Lease> Client::Grant(const RequestContext& context, absl::Duration ttl) {
  pb::LeaseGrantRequest request;
  // etcd counts leases in whole seconds.
  request.set_ttl(absl::ToInt64Seconds(absl::Ceil(ttl, absl::Seconds(1))));
  pb::LeaseGrantResponse response;
  TC_RETURN_IF_ERROR(state_->Call(context, "LeaseGrant", [&](const auto& channel, grpc::ClientContext& call) {
    return pb::Lease::NewStub(channel)->LeaseGrant(&call, request, &response);
  }));
  return Lease{.id = response.id(), .ttl = absl::Seconds(response.ttl())};
}

// etcd has keepalives as a stream alone. One message each way is enough here.
absl::StatusOr<absl::Duration> Client::KeepAlive(const RequestContext& context, int64_t lease) {
  pb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  pb::LeaseKeepAliveResponse response;
  TC_RETURN_IF_ERROR(
      state_->Call(context, "LeaseKeepAlive", [&](const auto& channel, grpc::ClientContext& call) {
        const auto stub = pb::Lease::NewStub(channel);
        const auto stream = stub->LeaseKeepAlive(&call);
        const bool answered = stream->Write(request) && stream->Read(&response);
        if (answered) {
          // Its end is of no interest, and etcd would wait for the next request.
          call.TryCancel();
          stream->Finish();
          return grpc::Status::OK;
        }
        const grpc::Status ended = stream->Finish();
        return ended.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream ended") : ended;
      }));
  if (response.ttl() > 0) return absl::Seconds(response.ttl());
  return absl::NotFoundError("renew the lease in etcd: the lease has ended; take the lead again");
}

absl::Status Client::Revoke(const RequestContext& context, int64_t lease) {
  pb::LeaseRevokeRequest request;
  request.set_id(lease);
  pb::LeaseRevokeResponse response;
  return state_->Call(context, "LeaseRevoke", [&](const auto& channel, grpc::ClientContext& call) {
    return pb::Lease::NewStub(channel)->LeaseRevoke(&call, request, &response);
  });
}

}  // namespace tensorcast::global_store::etcd
