# Builds an image without a shell: docker build --build-arg BERTH_COMMIT=$(git rev-parse HEAD) -t berth .
FROM docker.io/library/rust:1.95-bookworm AS build
ARG BERTH_COMMIT
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked -p berth-cli

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/dist/berth /berth
USER 65532:65532
ENTRYPOINT ["/berth"]
