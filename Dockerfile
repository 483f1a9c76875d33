# Berth in an image without a shell: docker build -t berth .
FROM docker.io/library/rust:1.95-bookworm AS build
# ring needs a C compiler and nothing else.
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked -p berth-cli

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/dist/berth /berth
USER 65532:65532
ENTRYPOINT ["/berth"]
