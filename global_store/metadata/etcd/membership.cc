#include "global_store/metadata/etcd/membership.h"

#include <algorithm>
#include <tuple>

#include "base/status.h"
#include "etcd/records.pb.h"
#include "global_store/metadata/etcd/keys.h"

namespace tensorcast::global_store::etcd {
namespace {

namespace pb = etcdserverpb;

// One that was killed is listed for so long.
constexpr absl::Duration kLife = absl::Seconds(5);
constexpr absl::Duration kRenewal = absl::Seconds(1);
constexpr absl::Duration kLeaseCallTimeout = absl::Seconds(2);

}  // namespace

Membership::Membership(Client* client, const LeadershipOptions& options)
    : client_(client),
      options_(options),
      task_(TaskLoop::Every(kRenewal, [this] { Renew().IgnoreError(); })) {}

Membership::~Membership() {
  task_.reset();
  if (lease_ != 0) client_->Revoke(RequestContext::Background(kLeaseCallTimeout), lease_).IgnoreError();
}

// The entry lives by a lease, so a store that dies is gone from the list after kLife. Where etcd does not
// know the lease any more, a new one is made.
absl::Status Membership::Renew() {
  const RequestContext context = RequestContext::Background(kLeaseCallTimeout);
  if (lease_ != 0) {
    const auto left = client_->KeepAlive(context, lease_);
    // Renewed, or etcd is away: then the lease may still live, and is asked for again in a second.
    if (!absl::IsNotFound(left.status())) return left.status();
    lease_ = 0;
  }
  TC_ASSIGN_OR_RETURN(const Client::Lease lease, client_->Grant(context, kLife));
  record::Leader self;
  self.set_name(options_.name);
  self.set_address(options_.address);
  pb::TxnRequest enter;
  pb::PutRequest& put = *enter.add_success()->mutable_request_put();
  put.set_key(Keys(options_.prefix).Member(lease.id));
  put.set_value(self.SerializeAsString());
  put.set_lease(lease.id);
  // Where this fails, the new lease ends by itself after kLife, and the next call starts with another one.
  TC_RETURN_IF_ERROR(client_->Txn(context, enter).status());
  lease_ = lease.id;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoreAddress>> Membership::List(const RequestContext& context) const {
  pb::RangeRequest all;
  all.set_key(Keys(options_.prefix).Members());
  all.set_range_end(EndOf(all.key()));
  TC_ASSIGN_OR_RETURN(const pb::RangeResponse found, client_->Range(context, all));
  std::vector<StoreAddress> members;
  for (const mvccpb::KeyValue& pair : found.kvs()) {
    record::Leader member;
    // Written by another version: not a reason to show none.
    if (!member.ParseFromString(pair.value())) continue;
    members.push_back({.name = member.name(), .address = member.address()});
  }
  std::ranges::sort(members, {},
                    [](const StoreAddress& member) { return std::tie(member.name, member.address); });
  return members;
}

}  // namespace tensorcast::global_store::etcd
