#include "objects/client_credentials.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/byte_codec.h"
#include "base/status.h"
#include "base/text.h"
#include "objects/credentials/credential_chain.h"
#include "objects/hf/hub_cache.h"
#include "objects/http/http_client.h"
#include "objects/open.h"

namespace tensorcast::objects {
namespace {

// The memory file, which ByteReader reads: a magic number, then the texts below in this order, each behind
// its length as uint32_t.
//
//   access key id, secret access key, session token, the Unix seconds when they expire or nothing,
//   hub token, S3 endpoint, region, hub endpoint
// "tcred1", least significant byte first. The number changes with the layout: a client of another release is
// refused in place of being misread.
constexpr uint64_t kMagic = 0x3164'6572'6374;
constexpr size_t kMaxBytes = 64 << 10;
// With these seals neither the bytes nor the size can change, so the client, which may keep a descriptor of
// the file, cannot change them while a daemon reads them.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

bool IsOfBucket(std::string_view uri) {
  return absl::StartsWith(uri, "s3://") || absl::StartsWith(uri, "gs://");
}
bool IsOfHub(std::string_view uri) { return absl::StartsWith(uri, "hf://"); }

// Memory that core files leave out and that is wiped at its end.
class HiddenMemory {
 public:
  HiddenMemory()
      : memory_(mmap(nullptr, kMaxBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ != MAP_FAILED) madvise(memory_, kMaxBytes, MADV_DONTDUMP);
  }
  ~HiddenMemory() {
    if (memory_ == MAP_FAILED) return;
    explicit_bzero(memory_, kMaxBytes);
    munmap(memory_, kMaxBytes);
  }
  HiddenMemory(const HiddenMemory&) = delete;
  HiddenMemory& operator=(const HiddenMemory&) = delete;

  bool ok() const { return memory_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(memory_); }

 private:
  void* const memory_;
};

// Writes into hidden memory, where a ByteWriter would leave the secrets in a string.
class Writer {
 public:
  explicit Writer(char* to) : to_(to) { Copy(ByteWriter().Put(kMagic).bytes()); }
  void Add(std::string_view text) {
    Copy(ByteWriter().Put(static_cast<uint32_t>(text.size())).bytes());
    Copy(text);
  }
  // `used_` counts on behind the end of the memory, where Copy writes nothing: one test at the end finds
  // texts that are too long.
  bool fits() const { return used_ <= kMaxBytes; }
  size_t used() const { return used_; }

 private:
  void Copy(std::string_view bytes) {
    if (used_ + bytes.size() <= kMaxBytes) bytes.copy(to_ + used_, bytes.size());
    used_ += bytes.size();
  }

  char* const to_;
  size_t used_ = 0;
};

absl::Status NotHanded() {
  return absl::InvalidArgumentError(
      "take a client's credentials: the file that the client handed over does not have the format of this "
      "release; use a client of the daemon's release");
}

// The environment that the store of this import sees: the endpoints and the region of the client, and how
// this host checks certificates. All other variables are empty, so that no credentials of the daemon are
// found.
Environment EnvironmentOf(const ClientCredentials& credentials, const Environment& ours) {
  return [endpoint = credentials.s3_endpoint, region = credentials.region, hub = credentials.hub_endpoint,
          certificates = ours("AWS_CA_BUNDLE")](std::string_view name) -> std::string {
    if (name == "AWS_ENDPOINT_URL_S3") return endpoint;
    if (name == "AWS_REGION") return region;
    if (name == "HF_ENDPOINT") return hub;
    if (name == "AWS_CA_BUNDLE") return certificates;
    return "";
  };
}

}  // namespace

absl::StatusOr<std::optional<ClientCredentials>> FindClientCredentials(const RequestContext& context,
                                                                       const std::string& uri,
                                                                       const Environment& environment) {
  ClientCredentials found;
  found.region = ConfiguredRegion(environment);
  found.s3_endpoint = S3Endpoint(environment);
  found.hub_endpoint = environment("HF_ENDPOINT");
  if (IsOfHub(uri)) {
    found.hub_token = HubToken(environment);
    if (found.hub_token.empty()) return std::nullopt;
    return found;
  }
  if (!IsOfBucket(uri)) return std::nullopt;
  // This client asks STS and metadata services for keys and reads no object, so it gets no max rates.
  const auto http = std::make_shared<HttpClient>(HttpOptions{.ca_bundle = environment("AWS_CA_BUNDLE")});
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Credentials> keys,
                      MakeDefaultCredentials(http, environment)->Get(context));
  if (keys == nullptr) return std::nullopt;
  found.keys = *keys;
  return found;
}

absl::StatusOr<UniqueFd> Hand(const ClientCredentials& credentials) {
  const HiddenMemory memory;
  UniqueFd file(memfd_create("tensorcast-credentials", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) {
    return absl::ResourceExhaustedError(
        "hand over credentials: this process cannot create a memory file for the credentials; raise the "
        "process's limits of open files and memory");
  }
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(
        "hand over credentials: this process cannot allocate memory for the credentials; raise the process's "
        "limit of memory");
  }
  Writer writer(memory.data());
  const Credentials keys = credentials.keys.value_or(Credentials());
  writer.Add(keys.access_key_id);
  writer.Add(keys.secret_access_key.Reveal());
  writer.Add(keys.session_token.Reveal());
  // An infinite time has no number of seconds, so keys without an end have an empty text.
  writer.Add(keys.expires == absl::InfiniteFuture() ? "" : absl::StrCat(absl::ToUnixSeconds(keys.expires)));
  writer.Add(credentials.hub_token.Reveal());
  for (const std::string* const text :
       {&credentials.s3_endpoint, &credentials.region, &credentials.hub_endpoint}) {
    writer.Add(*text);
  }
  if (!writer.fits()) {
    return absl::InvalidArgumentError(absl::StrCat("hand over credentials: the credentials have more than ",
                                                   kMaxBytes, " bytes; check the session token"));
  }
  // The seals come last: a sealed file takes no bytes.
  if (pwrite(file.get(), memory.data(), writer.used(), 0) != static_cast<ssize_t>(writer.used()) ||
      fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "write", "credentials to a memory file");
  }
  return file;
}

absl::StatusOr<ClientCredentials> Take(int memory_file) {
  // Only a memory file can have seals, and reading one never hangs.
  const int seals = fcntl(memory_file, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return NotHanded();
  const HiddenMemory memory;
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(
        "take a client's credentials: the daemon cannot allocate memory for the credentials; raise the "
        "daemon's limit of memory");
  }
  const ssize_t bytes = pread(memory_file, memory.data(), kMaxBytes, 0);
  if (bytes < 0) return ErrnoStatus(errno, "read", "a client's credentials");

  ByteReader reader({memory.data(), static_cast<size_t>(bytes)});
  if (reader.Get<uint64_t>() != kMagic) return NotHanded();
  Credentials keys;
  keys.access_key_id = reader.GetString<uint32_t>();
  keys.secret_access_key = Secret(reader.GetString<uint32_t>());
  keys.session_token = Secret(reader.GetString<uint32_t>());
  const std::string_view expires = reader.GetString<uint32_t>();
  ClientCredentials credentials;
  credentials.hub_token = Secret(reader.GetString<uint32_t>());
  credentials.s3_endpoint = reader.GetString<uint32_t>();
  credentials.region = reader.GetString<uint32_t>();
  credentials.hub_endpoint = reader.GetString<uint32_t>();
  int64_t seconds = 0;
  if (!reader.AtEnd() || (!expires.empty() && !absl::SimpleAtoi(expires, &seconds))) return NotHanded();
  if (!expires.empty()) keys.expires = absl::FromUnixSeconds(seconds);
  if (!keys.access_key_id.empty()) credentials.keys = std::move(keys);
  return credentials;
}

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenForClient(const std::string& uri,
                                                           ClientCredentials credentials,
                                                           const Environment& environment,
                                                           std::shared_ptr<ReadRates> rates) {
  const bool fits =
      IsOfBucket(uri) ? credentials.keys.has_value() : IsOfHub(uri) && !credentials.hub_token.empty();
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("open ", Printable(uri),
                     ": the client's credentials do not fit this kind of URI; give access keys for ",
                     "s3 and gs, a hub token for hf, and no credentials for other URIs"));
  }
  OpenOptions options;
  options.rates = std::move(rates);
  options.environment = EnvironmentOf(credentials, environment);
  // The URI is the only entry: neither a redirect nor a second request reads anything else with these keys.
  TC_ASSIGN_OR_RETURN(options.origins, Origins::Parse({uri}, ConfiguredEndpoints(environment)));
  // Set also where this import does not use them, so that no credentials of this process take their place.
  options.credentials = std::make_shared<FixedCredentials>(credentials.keys.value_or(Credentials()));
  options.hub_token = credentials.hub_token;
  return OpenObjects(std::move(options));
}

}  // namespace tensorcast::objects
