#include "global_store/app/etcd_group.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "rpc/convert/convert.h"

namespace tensorcast::global_store {
namespace {

namespace metrics = otel::metrics;

// Between two looks at the size of etcd's database: it is shown to operators, and nothing decides by it.
constexpr absl::Duration kMeasureInterval = absl::Seconds(10);
constexpr absl::Duration kPatience = absl::Seconds(1);  // of a call for the status

}  // namespace

void EtcdOptions::FromConfig(ConfigReader& config) {
  config.Read("global_store.etcd.endpoints", client.endpoints);
  config.Read("global_store.etcd.ca", client.ca);
  config.Read("global_store.etcd.certificate", client.certificate);
  config.Read("global_store.etcd.key", client.key);
  config.Read("global_store.etcd.user", client.user);
  config.Read("global_store.etcd.prefix", leadership.prefix);
  config.Read("global_store.etcd.lease", leadership.ttl);
  config.Read("global_store.listen", leadership.address);
  // The listings of the stores and the log lines tell stores apart by the address at which they listen.
  leadership.name = leadership.address;
  config.Read("global_store.etcd.quota", quota_bytes);
  std::string password_file;
  config.Read("global_store.etcd.password_file", password_file);
  if (password_file.empty()) return;
  std::ifstream file(password_file);
  if (!std::getline(file, client.password)) {
    config.findings().Add("global_store.etcd.password_file",
                          absl::StrCat("\"", password_file,
                                       "\" cannot be read or is empty; name a file with the password in its "
                                       "first line"));
  }
}

void EtcdOptions::Validate(Findings& findings) const {
  if (client.endpoints.empty()) {
    findings.Add("global_store.etcd.endpoints",
                 "the etcd metadata store needs the addresses of etcd's members; set host:port of each");
  }
}

EtcdGroup::EtcdGroup(const EtcdOptions& options, std::unique_ptr<etcd::Client> client)
    : options_(options), client_(std::move(client)), membership_(client_.get(), options.leadership) {}

absl::StatusOr<std::unique_ptr<EtcdGroup>> EtcdGroup::JoinAndLead(const EtcdOptions& options) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<etcd::Client> client, etcd::Client::Create(options.client));
  std::unique_ptr<EtcdGroup> group(new EtcdGroup(options, std::move(client)));
  RequestContext waits = RequestContext::Background();
  waits.cancellation = options.stop_waiting;
  // 0 while this store stands by. The registration ends with this function, after ObserveLeadership has made
  // the lasting one.
  const otel::GaugeRegistration standing_by =
      metrics::kLeaderLeads.Observe([](auto& observer) { observer.Observe(0); });
  TC_ASSIGN_OR_RETURN(group->leadership_,
                      etcd::Leadership::Campaign(
                          group->client(), options.leadership, waits, [](const etcd::StoreAddress& leader) {
                            LOG(INFO) << "this global store stands by: the global store " << leader.address
                                      << " leads";
                          }));
  group->ObserveLeadership();
  group->MeasureSize();
  group->measuring_ = TaskLoop::Every(kMeasureInterval, [raw = group.get()] { raw->MeasureSize(); });
  return group;
}

void EtcdGroup::ObserveLeadership() {
  const etcd::Leadership* const leads = leadership_.get();
  gauges_.push_back(metrics::kLeaderLeads.Observe(
      [leads](auto& observer) { observer.Observe(leads->left() > absl::ZeroDuration() ? 1 : 0); }));
  gauges_.push_back(metrics::kLeaderEpoch.Observe(
      [leads](auto& observer) { observer.Observe(static_cast<double>(leads->epoch().number)); }));
  gauges_.push_back(metrics::kLeaderLeaseSeconds.Observe(
      [leads](auto& observer) { observer.Observe(absl::ToDoubleSeconds(leads->left())); }));
  gauges_.push_back(metrics::kMetadataBytes.Observe([this](auto& observer) {
    if (bytes_ > 0) observer.Observe(static_cast<double>(bytes_));
  }));
}

void EtcdGroup::MeasureSize() {
  const auto status = client_->Status(RequestContext::Background(kPatience));
  if (!status.ok()) return;
  bytes_ = static_cast<uint64_t>(std::max<int64_t>(status->dbsize(), 0));
  // A warning comes once for each time that the database passes 80 % of the quota.
  const bool filling = bytes_ > options_.quota_bytes / 5 * 4;
  LOG_IF(WARNING, filling && !warned_) << "the database of etcd has " << bytes_
                                       << " bytes, more than 80 % of its quota of " << options_.quota_bytes
                                       << " bytes, and etcd accepts no changes when its database is full; "
                                          "compact and defragment etcd, or raise etcd's "
                                          "--quota-backend-bytes and global_store.etcd.quota";
  warned_ = filling;
}

void EtcdGroup::Describe(const RequestContext& context, v1::GetClusterStatusResponse& response) const {
  *response.mutable_leads_for() = rpc::ToProto(leadership_->led_for());
  response.set_metadata_bytes(bytes_);
  response.set_metadata_quota_bytes(options_.quota_bytes);
  // This store leads, since it answers, so its own entry needs no call to etcd.
  const etcd::LeadershipOptions& self = options_.leadership;
  v1::StoreMember& leader = *response.add_stores();
  leader.set_name(self.name);
  leader.set_address(self.address);
  leader.set_leads(true);
  RequestContext asks = context.Child();
  asks.deadline = std::min(asks.deadline, SteadyNow() + kPatience);
  const absl::StatusOr<std::vector<etcd::StoreAddress>> members = membership_.List(asks);
  // Without an answer of etcd the response names the leader alone.
  if (!members.ok()) return;
  for (const etcd::StoreAddress& member : *members) {
    if (member == etcd::StoreAddress{self.name, self.address}) continue;
    v1::StoreMember& other = *response.add_stores();
    other.set_name(member.name);
    other.set_address(member.address);
  }
}

}  // namespace tensorcast::global_store
