#include "security/certificate.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cerrno>
#include <ctime>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace tensorcast::security {
namespace {

absl::StatusOr<absl::Time> TimeOf(const ASN1_TIME* time) {
  // X.509 has times in UTC. ASN1_TIME_to_tm reads both of its forms.
  std::tm fields{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &fields) != 1) {
    return absl::InvalidArgumentError(
        "a time in the certificate is malformed; make the certificate with `tensorcast certs issue`");
  }
  return absl::FromTM(fields, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<std::string> UriOf(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(&certificate, NID_subject_alt_name, /*crit=*/nullptr, /*idx=*/nullptr)),
      GENERAL_NAMES_free);
  std::vector<std::string> uris;
  // Without the extension `names` is null, and its number of names -1.
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* one = sk_GENERAL_NAME_value(names.get(), i);
    if (one->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = one->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  // SPIFFE allows one; with two, readers could choose differently.
  if (uris.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate has ", uris.size(),
                     " URI names instead of one; make the certificate with `tensorcast certs issue`"));
  }
  return std::move(uris.front());
}

namespace {

std::string IssuerOf(const X509& certificate) {
  char text[256] = {};
  const int length =
      X509_NAME_get_text_by_NID(X509_get_issuer_name(&certificate), NID_commonName, text, sizeof(text));
  return length > 0 ? std::string(text, static_cast<size_t>(length)) : std::string();
}

std::string SerialNumberOf(const X509& certificate) {
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(&certificate), nullptr), BN_free);
  if (number == nullptr) return "";
  // Hexadecimal digits are how browsers and `openssl x509` show it.
  char* const digits = BN_bn2hex(number.get());
  std::string text = digits == nullptr ? "" : digits;
  OPENSSL_free(digits);
  return text;
}

}  // namespace

// It reads and verifies nothing: TLS verifies the chain, and Identity admits the name.
absl::StatusOr<Certificate> DescribeCertificate(const X509& certificate) {
  Certificate described;
  TC_ASSIGN_OR_RETURN(const std::string uri, UriOf(certificate));
  TC_ASSIGN_OR_RETURN(described.name, ParseName(uri));
  TC_ASSIGN_OR_RETURN(described.not_before, TimeOf(X509_get0_notBefore(&certificate)));
  TC_ASSIGN_OR_RETURN(described.not_after, TimeOf(X509_get0_notAfter(&certificate)));
  described.issuer = IssuerOf(certificate);
  described.serial_number = SerialNumberOf(certificate);
  return described;
}

absl::StatusOr<Certificate> ReadCertificate(std::string_view pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr), X509_free);
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the text has no certificate in PEM form (",
                                                   TakeOpenSslErrors(),
                                                   "); make the certificate with `tensorcast certs issue`"));
  }
  return DescribeCertificate(*certificate);
}

// Bounded: a path of the configuration may name a device, or a file that grows.
absl::StatusOr<std::string> ReadPemFile(const std::string& path) {
  constexpr size_t kMaxFileBytes = 4 << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, "open", path);
  std::string text;
  // One byte more than allowed tells a file that is too large.
  text.resize(kMaxFileBytes + 1);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) {
    return absl::InternalError(
        absl::StrCat("read ", path, ": the file system reported an error; check the disk"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("read ", path, ": the file has more than ", kMaxFileBytes,
                                                   " bytes; name a file of certificates, a key or names"));
  }
  return text;
}

// OpenSSL keeps errors in a queue of the thread. What stayed there would be blamed on the next call.
std::string TakeOpenSslErrors() {
  std::vector<std::string> errors;
  while (const unsigned long error = ERR_get_error()) {
    char text[256] = {};
    ERR_error_string_n(error, text, sizeof(text));
    errors.emplace_back(text);
  }
  return errors.empty() ? "OpenSSL gave no reason" : absl::StrJoin(errors, "; ");
}

}  // namespace tensorcast::security
