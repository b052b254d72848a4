#include "global_store/coordinator/grant_askers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/log/log.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"

namespace tensorcast::global_store {

void GrantAskers::NoteGranted(std::string_view request, const GrantOffer& offer) {
  for (const OfferedGrant& granted : offer.granted) {
    otel::metrics::kGlobalGrantsIssued.Add(1);
    const std::string& grant_id = granted.grant.grant_id;
    if (!request.empty()) grants_of_request_[request].push_back(grant_id);
    asker_of_grant_[grant_id] = {.request = std::string(request), .trace = otel::CurrentContext()};
  }
}

std::optional<GrantOffer> GrantAskers::RepeatedOffer(std::string_view request, const Transfers& transfers,
                                                     SteadyTime now) const {
  const auto known = grants_of_request_.find(request);
  if (request.empty() || known == grants_of_request_.end()) return std::nullopt;
  std::optional<GrantOffer> offer;
  for (const std::string& grant_id : known->second) {
    std::optional<GrantOffer> one = transfers.RepeatOffer(grant_id, now);
    if (!one.has_value()) continue;
    if (offer.has_value()) {
      std::ranges::move(one->granted, std::back_inserter(offer->granted));
    } else {
      offer = std::move(one);
    }
  }
  return offer;
}

void GrantAskers::NoteEnded(const EndedGrant& ended) {
  otel::metrics::kGlobalGrantsEnded.Add(1, {GrantEndName(ended.end)});
  Asker asker;
  if (auto known = asker_of_grant_.find(ended.grant.grant_id); known != asker_of_grant_.end()) {
    asker = std::move(known->second);
    asker_of_grant_.erase(known);
    Forget(asker.request, ended.grant.grant_id);
  }
  const otel::Scope scope(asker.trace);  // whatever ended it, the line is about that request
  LOG(INFO) << "grant " << ended.grant.grant_id << " of " << ended.grant.artifact_id << " from node "
            << ended.grant.source_node << " to " << ended.grant.receiver_node << " over " << ended.grant.lane
            << " " << GrantEndName(ended.end);
}

void GrantAskers::Forget(const std::string& request, const std::string& grant_id) {
  const auto grants = grants_of_request_.find(request);
  if (grants == grants_of_request_.end()) return;
  std::erase(grants->second, grant_id);
  if (grants->second.empty()) grants_of_request_.erase(grants);
}

}  // namespace tensorcast::global_store
